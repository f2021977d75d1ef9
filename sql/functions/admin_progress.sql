-- How far each state row is, how it stands and who holds it: of one consumer, or of all, those farthest behind first.
-- jit off: functions look large to the planner, and compiling would take a hundred times as long as reading.
-- `lag` counts ids up to the head; `lag_seconds` is the age of the oldest event that is not dealt with.
-- `missing_from`, `missing_to`: events that it had not read were pruned, and it does not run until accept_pruned().
CREATE OR REPLACE FUNCTION inorder.progress(consumer text DEFAULT NULL)
RETURNS TABLE (
    name text, instance text, partition int, kind text, revision int, partitions int, event_types text[],
    status text, "position" bigint, lag bigint, lag_seconds double precision,
    attempts int, max_attempts int, faults int, rearms int, next_attempt_at timestamptz,
    failed_event_id uuid, failed_position bigint, failed_event_type text, last_error text, last_error_at timestamptz,
    holder_pid int, missing_from bigint, missing_to bigint,
    processed bigint, failed bigint, skipped bigint, open_dead_letters bigint, seen_at timestamptz
)
LANGUAGE plpgsql
VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $body$
#variable_conflict use_column
BEGIN
    IF consumer IS NOT NULL AND NOT EXISTS (SELECT FROM inorder.consumers AS c WHERE c.name = progress.consumer) THEN
        PERFORM inorder.admin_known(consumer, '', NULL);
    END IF;
    RETURN QUERY
    WITH log AS MATERIALIZED (
        SELECT greatest(max(e.id), inorder.settled()) AS head FROM inorder.events AS e
    ), holder AS MATERIALIZED (
        SELECT h.lock_key, min(h.pid) AS pid FROM inorder.admin_holders() AS h GROUP BY h.lock_key
    ), unfinished AS MATERIALIZED (
        SELECT d.consumer, d.instance, d.partition, count(*) AS letters
        FROM inorder.dead_letters AS d
        WHERE d.state IN ('open', 'retry_requested')
        GROUP BY d.consumer, d.instance, d.partition
    )
    SELECT c.name, c.instance, c.partition, c.kind, c.revision, c.partitions, c.event_types,
           inorder.admin_status(c.status, c.next_attempt_at), c.position,
           greatest(l.head - c.position, 0),
           -- As numbers, and not without end: a bare INSERT may have written an endless time.
           coalesce(least(greatest(extract(epoch FROM clock_timestamp()) - extract(epoch FROM unread.recorded_at), 0), 1e11), 0)::double precision,
           c.attempts, c.max_attempts, c.faults, c.rearms, c.next_attempt_at,
           c.failed_event_id, culprit.id, culprit.event_type, c.last_error, c.last_error_at,
           h.pid, lower(gone.missing), upper(gone.missing) - 1,
           c.processed, c.failed, c.skipped, coalesce(u.letters, 0), c.seen_at
    FROM inorder.consumers AS c
    CROSS JOIN log AS l
    CROSS JOIN LATERAL (SELECT inorder.pruned_unread(c.position, c.accepted_to, c.event_types) AS missing) AS gone
    LEFT JOIN LATERAL (
        SELECT e.recorded_at FROM inorder.events AS e WHERE e.id > c.position ORDER BY e.id LIMIT 1
    ) AS unread ON true
    LEFT JOIN inorder.events AS culprit ON culprit.event_id = c.failed_event_id
    LEFT JOIN holder AS h ON h.lock_key = c.lock_key
    LEFT JOIN unfinished AS u ON u.consumer = c.name AND u.instance = c.instance AND u.partition = c.partition
    WHERE progress.consumer IS NULL OR c.name = progress.consumer
    ORDER BY unread.recorded_at, c.name, c.instance, c.partition;
END
$body$;

-- The same in a width that fits a terminal.
CREATE OR REPLACE FUNCTION inorder.list_consumers()
RETURNS TABLE (
    name text, instance text, partition int, status text, "position" bigint, lag bigint, behind interval,
    attempts text, failed_event_id uuid, last_error text
)
LANGUAGE sql
VOLATILE
SET search_path = pg_catalog, pg_temp
AS $body$
    SELECT p.name, p.instance, p.partition, p.status, p.position, p.lag,
           make_interval(secs => round(p.lag_seconds)),
           format('%s/%s', p.attempts, p.max_attempts), p.failed_event_id, p.last_error
    FROM inorder.progress() AS p
$body$;
