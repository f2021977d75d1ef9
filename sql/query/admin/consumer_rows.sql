-- inorder admin/consumer_rows
-- The state rows of a consumer, each behind the event at which it failed: first the columns of events/page, NULL where there is none, where
-- it was pruned, and from where on the events take more than a budget.
-- $1 text    consumer
-- $2 text    instance: NULL for every instance
-- $3 int     partition: NULL for every partition
-- $4 int     max_rows
-- $5 bigint  budget, in bytes as stored; the first event is there whatever it takes
WITH shown AS (
    SELECT c.*,
           coalesce(
               sum(pg_catalog.pg_column_size(e.payload) + pg_catalog.pg_column_size(e.metadata))
                   OVER (ORDER BY c.ordinality ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING),
               0
           ) AS bytes
    FROM inorder.consumer_rows(consumer => $1::text, of_instance => $2::text, of_partition => $3::int, max_rows => $4::int)
        WITH ORDINALITY AS c
    LEFT JOIN inorder.events AS e ON e.event_id = c.failed_event_id
)
SELECT e.id AS event_position, e.event_id AS event_name, e.tenant_id, e.stream_type, e.stream_id, e.stream_version, e.stream_hash,
       e.event_type AS type_of_event, e.schema_version, e.payload, e.metadata, e.correlation_id, e.causation_id,
       e.created_by AS event_created_by, e.recorded_at,
       s.name, s.instance, s.partition, s.kind, s.revision, s.partitions, s.event_types, s.status, s.position, s.lag, s.lag_seconds,
       s.attempts, s.max_attempts, s.faults, s.rearms, s.next_attempt_at, s.failed_event_id, s.failed_position, s.failed_event_type,
       s.last_error, s.last_error_at, s.holder_pid, s.missing_from, s.missing_to, s.processed, s.failed, s.skipped, s.open_dead_letters,
       s.seen_at, s.owner, s.owner_host, s.owner_pid, s.owner_gone, s.lease_until, s.pending, s.in_progress, s.accepted_to, s.created_at,
       s.updated_at
FROM shown AS s
LEFT JOIN inorder.events AS e ON e.event_id = s.failed_event_id AND s.bytes < $5::bigint
ORDER BY s.ordinality
