-- inorder ledger/settle_queued
-- Writes what queued events came to, and the dead letters of those that are given up. A claim that was lost changes nothing: the
-- answer names those that were still held. A dead letter whose retry came to its end is settled, too.
-- $1 uuid[]    event_ids: sorted, as rows are locked in that order
-- $2 bigint[]  tokens
-- $3 text      handler
-- $4 text[]    statuses
-- $5 int[]     attempts: to be added
-- $6 int[]     faults: to be added
-- $7 float8[]  due_in: seconds until the next attempt, of a pending row
-- $8 text[]    errors
-- $9 text[]    reasons: of a dead letter; NULL for none
-- $10 text     consumer
-- $11 text     instance
WITH settled AS (
    UPDATE inorder.ledger AS l
    SET status = s.status,
        attempts = l.attempts + s.attempts,
        faults = l.faults + s.faults,
        next_attempt_at = CASE s.status WHEN 'pending' THEN clock_timestamp() + make_interval(secs => s.due_in) END,
        lease_until = NULL,
        last_error = coalesce(s.error, l.last_error),
        updated_at = clock_timestamp()
    FROM (
        SELECT u.event_id, u.token, u.status, u.attempts, u.faults, u.due_in, u.error, u.reason, $3::text AS handler
        FROM unnest($1::uuid[], $2::bigint[], $4::text[], $5::int[], $6::int[], $7::float8[], $8::text[], $9::text[])
            AS u (event_id, token, status, attempts, faults, due_in, error, reason)
        -- Kept apart, so that each row is found by its whole key.
        OFFSET 0
    ) AS s
    -- Leased is in progress, said so that the index of what is due is of no use: one that finds the row by its key is.
    WHERE l.event_id = s.event_id AND l.handler = s.handler AND l.token = s.token AND l.lease_until IS NOT NULL
    RETURNING l.event_id, l.position, l.attempts, l.last_error, s.status, s.reason
),
ended AS (
    SELECT event_id, position, attempts, last_error, status, reason
    FROM settled
    WHERE reason IS NOT NULL OR EXISTS (
        SELECT FROM inorder.dead_letters AS d
        WHERE d.consumer = $10::text AND d.instance = $11::text AND d.state = 'retry_requested'
    )
),
retried AS (
    UPDATE inorder.dead_letters AS d
    SET state = CASE e.status WHEN 'done' THEN 'resolved' ELSE 'open' END, attempts = d.attempts + e.attempts,
        error = CASE e.status WHEN 'done' THEN d.error ELSE e.last_error END, updated_at = clock_timestamp(), updated_by = 'inorder'
    FROM ended AS e
    WHERE d.consumer = $10::text AND d.instance = $11::text AND d.event_id = e.event_id AND d.state = 'retry_requested'
        AND e.status IN ('done', 'dead')
    RETURNING d.event_id
),
letters AS (
    INSERT INTO inorder.dead_letters (consumer, instance, position, event_id, event_type, attempts, error, reason)
    SELECT $10::text, $11::text, e.position, e.event_id, v.event_type, e.attempts, e.last_error, e.reason
    FROM ended AS e
    LEFT JOIN inorder.events AS v ON v.event_id = e.event_id
    WHERE e.reason IS NOT NULL AND NOT EXISTS (SELECT FROM retried AS r WHERE r.event_id = e.event_id)
    ORDER BY e.position
)
SELECT event_id
FROM settled
