-- All that is known of the state rows of a consumer, of one instance or partition or (NULL) of every one; those farthest behind first.
-- Besides what progress() says: which process ran it last, until when that has leased it, and what waits in its queue, or is claimed,
-- counted up to 10,000 and once for all partitions.
CREATE OR REPLACE FUNCTION inorder.consumer_rows(
    consumer text, of_instance text DEFAULT NULL, of_partition int DEFAULT NULL, max_rows int DEFAULT 100
)
RETURNS TABLE (
    name text, instance text, partition int, kind text, revision int, partitions int, event_types text[],
    status text, "position" bigint, lag bigint, lag_seconds double precision,
    attempts int, max_attempts int, faults int, rearms int, next_attempt_at timestamptz,
    failed_event_id uuid, failed_position bigint, failed_event_type text, last_error text, last_error_at timestamptz,
    holder_pid int, missing_from bigint, missing_to bigint,
    processed bigint, failed bigint, skipped bigint, open_dead_letters bigint, seen_at timestamptz,
    owner uuid, owner_host text, owner_pid int, owner_gone boolean, lease_until timestamptz,
    pending bigint, in_progress bigint, accepted_to bigint, created_at timestamptz, updated_at timestamptz
)
LANGUAGE plpgsql
VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $body$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT p.name, p.instance, p.partition, p.kind, p.revision, p.partitions, p.event_types,
           p.status, p.position, p.lag, p.lag_seconds,
           p.attempts, p.max_attempts, p.faults, p.rearms, p.next_attempt_at,
           p.failed_event_id, p.failed_position, p.failed_event_type, p.last_error, p.last_error_at,
           p.holder_pid, p.missing_from, p.missing_to,
           p.processed, p.failed, p.skipped, p.open_dead_letters, p.seen_at,
           c.owner, i.host, i.pid, CASE WHEN c.owner IS NOT NULL THEN i.id IS NULL OR inorder.is_gone(c.owner) END, c.lease_until,
           q.pending, q.in_progress, c.accepted_to, c.created_at, c.updated_at
    FROM inorder.progress(consumer) WITH ORDINALITY AS p
    JOIN inorder.consumers AS c ON c.name = p.name AND c.instance = p.instance AND c.partition = p.partition
    LEFT JOIN inorder.instances AS i ON i.id = c.owner
    LEFT JOIN LATERAL (
        SELECT count(*) FILTER (WHERE r.status = 'pending') AS pending, count(*) FILTER (WHERE r.status = 'in_progress') AS in_progress
        FROM (
            SELECT l.status
            FROM inorder.ledger AS l
            WHERE l.handler = inorder.ledger_handler(c.name, c.instance) AND l.status IN ('pending', 'in_progress')
            LIMIT 10000
        ) AS r
    ) AS q ON c.kind IN ('effect', 'queued') AND c.partition = 0
    WHERE (of_instance IS NULL OR p.instance = of_instance) AND (of_partition IS NULL OR p.partition = of_partition)
    ORDER BY p.ordinality
    LIMIT max_rows;
    IF NOT FOUND THEN
        PERFORM inorder.admin_known(
            consumer,
            coalesce(of_instance, (SELECT min(c.instance) FROM inorder.consumers AS c WHERE c.name = consumer_rows.consumer), ''),
            of_partition
        );
    END IF;
END
$body$;
