-- inorder consumers/free
-- Terminates the session that holds a row when it has been in the same state for longer than a handler may take: a process
-- that is frozen, or a session that nobody reads from any more.
-- $1 text    consumer
-- $2 text    instance
-- $3 int     partition
-- $4 float8  limit: seconds
-- $5 int     backend: only this one; NULL for any
SELECT a.pid, a.application_name, extract(epoch FROM clock_timestamp() - a.state_change)::float8 AS stuck_for,
       pg_terminate_backend(a.pid) AS terminated
FROM inorder.consumers AS c
JOIN pg_catalog.pg_locks AS l
    ON l.locktype = 'advisory'
    AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
    AND l.classid = 'inorder.consumers'::regclass
    AND l.objid::bigint = c.lock_key
    AND l.objsubid = 2
    AND l.granted
JOIN pg_catalog.pg_stat_activity AS a ON a.pid = l.pid
WHERE c.name = $1::text AND c.instance = $2::text AND c.partition = $3::int
    AND a.state_change < clock_timestamp() - make_interval(secs => $4::float8)
    AND ($5::int IS NULL OR a.pid = $5::int)
