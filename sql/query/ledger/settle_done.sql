-- inorder ledger/settle_done
-- Writes that queued events are done: `settle_queued` where nothing failed. A claim that was lost changes nothing: the answer names
-- those that were still held. A dead letter whose retry came to its end is settled, too.
-- $1 uuid[]    event_ids: sorted, as rows are locked in that order
-- $2 bigint[]  tokens
-- $3 text      handler
-- $4 text      consumer
-- $5 text      instance
WITH settled AS (
    UPDATE inorder.ledger AS l
    SET status = 'done', lease_until = NULL, next_attempt_at = NULL, updated_at = clock_timestamp()
    FROM (
        SELECT u.event_id, u.token, $3::text AS handler
        FROM unnest($1::uuid[], $2::bigint[])
            AS u (event_id, token)
        -- Kept apart, so that each row is found by its whole key.
        OFFSET 0
    ) AS s
    -- Leased is in progress, said so that the index of what is due is of no use: one that finds the row by its key is.
    WHERE l.event_id = s.event_id AND l.handler = s.handler AND l.token = s.token AND l.lease_until IS NOT NULL
    RETURNING l.event_id, l.attempts
),
ended AS (
    SELECT event_id, attempts
    FROM settled
    WHERE EXISTS (
        SELECT FROM inorder.dead_letters AS d
        WHERE d.consumer = $4::text AND d.instance = $5::text AND d.state = 'retry_requested'
    )
),
retried AS (
    UPDATE inorder.dead_letters AS d
    SET state = 'resolved', attempts = d.attempts + e.attempts, updated_at = clock_timestamp(), updated_by = 'inorder'
    FROM ended AS e
    WHERE d.consumer = $4::text AND d.instance = $5::text AND d.event_id = e.event_id AND d.state = 'retry_requested'
)
SELECT event_id
FROM settled
