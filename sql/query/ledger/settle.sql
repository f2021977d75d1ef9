-- inorder ledger/settle
-- Writes what claims came to. A claim that was lost changes nothing: the answer names those that were still held.
-- $1 uuid[]   event_ids: sorted, as rows are locked in that order
-- $2 bigint[] tokens
-- $3 text     handler
-- $4 text[]   statuses
-- $5 int[]    attempts: to be added
-- $6 int[]    faults: to be added
-- $7 float8[] due_in: seconds until the next attempt, of a pending row
-- $8 text[]   errors
UPDATE inorder.ledger AS l
SET status = s.status,
    attempts = l.attempts + s.attempts,
    faults = l.faults + s.faults,
    next_attempt_at = CASE s.status WHEN 'pending' THEN clock_timestamp() + make_interval(secs => s.due_in) END,
    lease_until = NULL,
    last_error = coalesce(s.error, l.last_error),
    updated_at = clock_timestamp()
FROM (
    SELECT u.event_id, u.token, u.status, u.attempts, u.faults, u.due_in, u.error, $3::text AS handler
    FROM unnest($1::uuid[], $2::bigint[], $4::text[], $5::int[], $6::int[], $7::float8[], $8::text[])
        AS u (event_id, token, status, attempts, faults, due_in, error)
    -- Kept apart, so that each row is found by its whole key.
    OFFSET 0
) AS s
-- Leased is in progress, said so that the index of what is due is of no use: one that finds the row by its key is.
WHERE l.event_id = s.event_id AND l.handler = s.handler AND l.token = s.token AND l.lease_until IS NOT NULL
RETURNING l.event_id
