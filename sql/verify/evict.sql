-- inorder verify/evict
-- Ends every other session that holds or waits for a lock in the schema.
-- $1 text  schema
SELECT pg_terminate_backend(s.pid) AS ended
FROM (
    SELECT DISTINCT k.pid
    FROM pg_catalog.pg_locks AS k
    JOIN pg_catalog.pg_class AS c ON c.oid = k.relation
    JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    WHERE n.nspname = $1::text AND k.pid <> pg_backend_pid()
        AND k.database = (SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = current_database())
) AS s
