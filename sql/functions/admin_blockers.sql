-- Who is writing, and so may hold a hole open: the safe head does not pass a hole below which one of these may still commit.
-- A pass of ours is a writer when its handler appends; then the consumer is named, and the event with which the pass began.
-- jit off: functions look large to the planner, and compiling would take seconds.
CREATE OR REPLACE FUNCTION inorder.blockers()
RETURNS TABLE (
    pid int, prepared_gid text, username text, application text, state text, since timestamptz, age_seconds double precision,
    consumer text, instance text, partition int, event_position bigint, event_id uuid, event_type text
)
LANGUAGE sql
VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $body$
    SELECT w.pid, p.gid, coalesce(a.usename, p.owner)::text, a.application_name,
           CASE
               WHEN w.pid IS NULL THEN 'prepared'
               WHEN a.state IS NULL THEN 'hidden'
               ELSE a.state
           END,
           coalesce(a.xact_start, p.prepared),
           extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, p.prepared))::double precision,
           c.name, c.instance, c.partition, e.id, e.event_id, e.event_type
    FROM inorder.writers() AS w
    LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid = w.pid
    -- A prepared transaction keeps its locks under a virtual transaction without a backend; the transaction id leads to its name.
    LEFT JOIN LATERAL (
        SELECT DISTINCT x.gid, x.owner, x.prepared
        FROM pg_catalog.pg_locks AS l
        JOIN pg_catalog.pg_prepared_xacts AS x ON x.transaction = l.transactionid
        WHERE w.pid IS NULL AND l.pid IS NULL AND l.locktype = 'transactionid' AND l.virtualtransaction = w.virtualtransaction
    ) AS p ON true
    LEFT JOIN inorder.admin_holders() AS h ON h.pid = w.pid
    LEFT JOIN inorder.consumers AS c ON c.lock_key = h.lock_key
    LEFT JOIN LATERAL (
        SELECT n.id, n.event_id, n.event_type
        FROM inorder.events AS n
        WHERE n.id > c.position
            AND (c.event_types IS NULL OR n.event_type = ANY (c.event_types))
            AND (c.partitions = 1 OR (n.stream_hash & 2147483647) % c.partitions = c.partition)
        ORDER BY n.id
        LIMIT 1
    ) AS e ON true
    WHERE w.pid IS DISTINCT FROM pg_backend_pid()
    ORDER BY 6, 1
$body$;
