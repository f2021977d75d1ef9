-- inorder migrations/blockers
-- Who is in the way of a migration: the sessions that hold the migration lock of a schema or a lock on its tables.
-- $1 text  schema
WITH held AS (
    SELECT l.pid, l.locktype = 'advisory' AS migrating
    FROM pg_catalog.pg_locks AS l
    WHERE l.database = (SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = current_database())
        AND l.granted
        AND l.pid IS DISTINCT FROM pg_backend_pid()
        AND (
            l.locktype = 'advisory'
                AND l.classid = 1768845165
                AND l.objid = ('x' || left(md5($1::text), 8))::bit(32)::bigint
                AND l.objsubid = 2
            OR l.locktype = 'relation'
                AND l.relation IN (
                    SELECT c.oid
                    FROM pg_catalog.pg_class AS c
                    JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
                    WHERE n.nspname = $1::text AND c.relkind = 'r'
                )
        )
), blocker AS (
    SELECT pid, bool_or(migrating) AS migrating
    FROM held
    GROUP BY pid
)
SELECT concat_ws(' ',
           CASE WHEN b.pid IS NULL THEN 'a prepared transaction' ELSE format('pid %s', b.pid) END,
           CASE WHEN a.application_name <> '' THEN format('(application %s)', a.application_name) END,
           CASE WHEN b.migrating THEN 'migrating it' END,
           'for ' || extract(epoch FROM clock_timestamp() - a.xact_start)::numeric(12, 1) || ' s'
       ) AS blocker
FROM blocker AS b
LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid = b.pid
ORDER BY b.migrating DESC, a.xact_start
LIMIT 5
