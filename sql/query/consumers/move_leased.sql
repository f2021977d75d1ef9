-- inorder consumers/move_leased
-- Writes that what was run outside of any transaction is done, and moves the row on: `settle_leased` where nothing failed. What is
-- no longer ours is not changed: the claims by their tokens, the row by its lease's. A claim that is still ours is settled even if
-- the row is not: what was run was run.
-- $1 text     consumer
-- $2 text     instance
-- $3 int      partition
-- $4 bigint   lease_token
-- $5 bigint   position
-- $6 bigint   processed: to be added
-- $7 text     handler
-- $8 uuid[]   event_ids: of the claims, sorted, as rows are locked in that order
-- $9 bigint[] tokens
WITH settled AS (
    UPDATE inorder.ledger AS l
    SET status = 'done', lease_until = NULL, next_attempt_at = NULL, updated_at = clock_timestamp()
    FROM (
        SELECT u.event_id, u.token, $7::text AS handler
        FROM unnest($8::uuid[], $9::bigint[])
            AS u (event_id, token)
        -- Kept apart, so that each row is found by its whole key.
        OFFSET 0
    ) AS s
    -- Leased is in progress, said so that the index of what is due is of no use: one that finds the row by its key is.
    WHERE l.event_id = s.event_id AND l.handler = s.handler AND l.token = s.token AND l.lease_until IS NOT NULL
    RETURNING 1
),
moved AS (
    UPDATE inorder.consumers
    SET position = $5::bigint, status = 'idle', attempts = 0, faults = 0, rearms = 0, next_attempt_at = NULL,
        failed_event_id = NULL, last_error = NULL, processed = processed + $6::bigint, updated_at = clock_timestamp()
    WHERE name = $1::text AND instance = $2::text AND partition = $3::int AND lease_token = $4::bigint AND lease_until IS NOT NULL
    RETURNING 1
)
-- The row first, as whoever renews it does.
SELECT EXISTS (SELECT FROM moved) AS moved, (SELECT count(*) FROM settled) AS settled
