-- inorder consumers/settle_leased
-- Writes what was run outside of any transaction, and what that means for the row: claims in the ledger, the row, and the dead letter
-- of an event that is passed over, together. What is no longer ours is not changed: the claims by their tokens, the row by its
-- lease's. A claim that is still ours is settled even if the row is not: what was run was run.
-- $1  text     consumer
-- $2  text     instance
-- $3  int      partition
-- $4  bigint   lease_token
-- $5  bigint   position
-- $6  text     status
-- $7  int      attempts
-- $8  int      faults
-- $9  int      rearms
-- $10 float8   due_in: seconds until the next attempt; NULL for at once, or never where the status says so
-- $11 uuid     failed_event_id
-- $12 text     last_error
-- $13 bigint   processed: to be added, as the next two
-- $14 bigint   failed
-- $15 bigint   skipped
-- $16 boolean  keep: the lease is held on
-- $17 text     handler
-- $18 uuid[]   event_ids: of the claims, sorted, as rows are locked in that order
-- $19 bigint[] tokens
-- $20 text     claim_status: what they are from now on
-- $21 int      claim_attempts: to be added
-- $22 bigint   letter_position: of the event that is passed over; NULL for none, as the rest
-- $23 uuid     letter_event_id
-- $24 text     letter_event_type
-- $25 int      letter_attempts
-- $26 text     letter_reason
WITH settled AS (
    UPDATE inorder.ledger AS l
    SET status = $20::text, lease_until = NULL, next_attempt_at = NULL,
        -- Given up, it begins anew when an operator has it tried again.
        attempts = l.attempts + $21::int + CASE WHEN 'dead' IN ($6::text, $20::text) THEN l.faults ELSE 0 END,
        faults = CASE WHEN 'dead' IN ($6::text, $20::text) THEN 0 ELSE l.faults END,
        last_error = coalesce($12::text, l.last_error), updated_at = clock_timestamp()
    FROM (
        SELECT u.event_id, u.token, $17::text AS handler
        FROM unnest($18::uuid[], $19::bigint[])
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
    SET position = $5::bigint,
        status = $6::text,
        attempts = $7::int,
        faults = $8::int,
        rearms = $9::int,
        next_attempt_at = clock_timestamp() + make_interval(secs => $10::float8),
        failed_event_id = $11::uuid,
        last_error = $12::text,
        last_error_at = CASE WHEN $14::bigint > 0 THEN clock_timestamp() ELSE last_error_at END,
        processed = processed + $13::bigint,
        failed = failed + $14::bigint,
        skipped = skipped + $15::bigint,
        lease_until = CASE WHEN $16::boolean THEN lease_until END,
        updated_at = clock_timestamp()
    WHERE name = $1::text AND instance = $2::text AND partition = $3::int AND lease_token = $4::bigint AND lease_until IS NOT NULL
    RETURNING next_attempt_at
),
letter AS (
    INSERT INTO inorder.dead_letters (consumer, instance, partition, position, event_id, event_type, attempts, error, reason)
    SELECT $1::text, $2::text, $3::int, $22::bigint, $23::uuid, $24::text, $25::int, $12::text, $26::text
    FROM moved
    WHERE $22::bigint IS NOT NULL
)
-- The row first, as whoever renews it does.
SELECT EXISTS (SELECT FROM moved) AS moved, (SELECT count(*) FROM settled) AS settled, (SELECT next_attempt_at FROM moved) AS next_attempt_at
