-- inorder consumers/give_lease_back
-- Lets others have a row that we leased, and releases the claims of what was not run to its end: that costs them no attempt.
-- $1 text      consumer
-- $2 text      instance
-- $3 int       partition
-- $4 bigint    lease_token
-- $5 text      handler
-- $6 uuid[]    event_ids: sorted, as rows are locked in that order
-- $7 bigint[]  tokens
WITH released AS (
    UPDATE inorder.ledger AS l
    SET status = 'pending', lease_until = NULL, next_attempt_at = NULL, updated_at = clock_timestamp()
    FROM (
        SELECT u.event_id, u.token, $5::text AS handler
        FROM unnest($6::uuid[], $7::bigint[])
            AS u (event_id, token)
        -- Kept apart, so that each row is found by its whole key.
        OFFSET 0
    ) AS s
    -- Leased is in progress, said so that the index of what is due is of no use: one that finds the row by its key is.
    WHERE l.event_id = s.event_id AND l.handler = s.handler AND l.token = s.token AND l.lease_until IS NOT NULL
)
UPDATE inorder.consumers
SET lease_until = NULL
WHERE name = $1::text AND instance = $2::text AND partition = $3::int AND lease_token = $4::bigint
