-- inorder admin/consumer_rows_alone
-- As admin/consumer_rows, for roles that may not read payloads: the columns of the event are NULL.
-- $1 text    consumer
-- $2 text    instance: NULL for every instance
-- $3 int     partition: NULL for every partition
-- $4 int     max_rows
SELECT NULL::bigint AS event_position,
       s.name, s.instance, s.partition, s.kind, s.revision, s.partitions, s.event_types, s.status, s.position, s.lag, s.lag_seconds,
       s.attempts, s.max_attempts, s.faults, s.rearms, s.next_attempt_at, s.failed_event_id, s.failed_position, s.failed_event_type,
       s.last_error, s.last_error_at, s.holder_pid, s.missing_from, s.missing_to, s.processed, s.failed, s.skipped, s.open_dead_letters,
       s.seen_at, s.owner, s.owner_host, s.owner_pid, s.owner_gone, s.lease_until, s.pending, s.in_progress, s.accepted_to, s.created_at,
       s.updated_at
FROM inorder.consumer_rows(consumer => $1::text, of_instance => $2::text, of_partition => $3::int, max_rows => $4::int) AS s
