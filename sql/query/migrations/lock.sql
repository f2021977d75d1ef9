-- inorder migrations/lock
-- Lets one process at a time migrate a schema, until its transaction ends.
-- $1 text  schema
SELECT pg_advisory_xact_lock(1768845165, ('x' || left(md5($1::text), 8))::bit(32)::int)
