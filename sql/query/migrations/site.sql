-- inorder migrations/site
-- Where a migration would take place: the server, the database, and what the schema's name stands for there.
-- $1 text  schema
SELECT current_setting('server_version_num')::int AS server_version,
       current_setting('server_version') AS server_version_text,
       pg_encoding_to_char(d.encoding)::text AS encoding,
       pg_is_in_recovery() AS standby,
       d.datname::text AS database,
       current_user::text AS role,
       n.oid IS NOT NULL AS schema_exists,
       pg_get_userbyid(n.nspowner)::text AS schema_owner,
       CASE WHEN n.oid IS NULL
           THEN has_database_privilege(d.oid, 'CREATE')
           ELSE has_schema_privilege(n.oid, 'CREATE') AND has_schema_privilege(n.oid, 'USAGE')
       END AS may_create,
       EXISTS (
           SELECT FROM pg_catalog.pg_class AS c WHERE c.relnamespace = n.oid AND c.relname = 'migrations'
       ) AS has_migrations,
       (
           SELECT count(*)
           FROM pg_catalog.pg_class AS c
           JOIN pg_catalog.pg_attribute AS a ON a.attrelid = c.oid
           WHERE c.relnamespace = n.oid
               AND c.relname = 'migrations'
               AND c.relkind = 'r'
               AND a.attname IN ('version', 'name', 'checksum', 'library', 'structure', 'applied_at')
       ) = 6 AS migrations_is_ours,
       ARRAY(
           SELECT c.relname::text
           FROM pg_catalog.pg_class AS c
           WHERE c.relnamespace = n.oid
               AND c.relname IN (
                   'events', 'consumers', 'ledger', 'ledger_floors', 'dead_letters', 'handoffs', 'handoff_scopes', 'instances', 'audit', 'log_state'
               )
           ORDER BY c.relname
       ) AS tables
FROM pg_catalog.pg_database AS d
LEFT JOIN pg_catalog.pg_namespace AS n ON n.nspname = $1::text
WHERE d.datname = current_database()
