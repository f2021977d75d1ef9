//! A throwaway PostgreSQL cluster for tests, benches and examples.
