-- inorder admin/progress
-- How far the state rows are and how they stand.
-- $1 text  consumer: NULL for all
SELECT name, instance, partition, kind, revision, partitions, event_types, status, position, lag, lag_seconds, attempts, max_attempts,
       faults, rearms, next_attempt_at, failed_event_id, failed_position, failed_event_type, last_error, last_error_at, holder_pid,
       missing_from, missing_to, processed, failed, skipped, open_dead_letters, seen_at
FROM inorder.progress($1::text)
