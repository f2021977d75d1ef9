-- inorder migrations/holder
-- The sessions that hold the migration lock of a schema.
-- $1 text  schema
SELECT l.pid, coalesce(a.application_name, '') AS application_name
FROM pg_catalog.pg_locks AS l
LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid = l.pid
WHERE l.locktype = 'advisory'
    AND l.database = (SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = current_database())
    AND l.classid = 1768845165
    AND l.objid::bigint = ('x' || left(md5($1::text), 8))::bit(32)::bigint
    AND l.granted
ORDER BY l.pid
