-- inorder consumers/renew
-- Renews the lease of a row and the claims of what is being run, together. A lease and a claim that are lost stay lost.
-- $1 text      consumer
-- $2 text      instance
-- $3 int       partition
-- $4 bigint    lease_token
-- $5 float8    lease: seconds
-- $6 text      handler
-- $7 uuid[]    event_ids: sorted, as rows are locked in that order
-- $8 bigint[]  tokens
WITH row_held AS (
    UPDATE inorder.consumers
    SET lease_until = clock_timestamp() + make_interval(secs => $5::float8)
    WHERE name = $1::text AND instance = $2::text AND partition = $3::int AND lease_token = $4::bigint AND lease_until IS NOT NULL
    RETURNING 1
),
claims_held AS (
    UPDATE inorder.ledger AS l
    SET lease_until = clock_timestamp() + make_interval(secs => $5::float8)
    FROM (
        SELECT u.event_id, u.token, $6::text AS handler
        FROM unnest($7::uuid[], $8::bigint[])
            AS u (event_id, token)
        -- Kept apart, so that each row is found by its whole key.
        OFFSET 0
    ) AS s
    -- Leased is in progress, said so that the index of what is due is of no use: one that finds the row by its key is.
    WHERE l.event_id = s.event_id AND l.handler = s.handler AND l.token = s.token AND l.lease_until IS NOT NULL
    RETURNING 1
)
SELECT EXISTS (SELECT FROM row_held) AS row_held, (SELECT count(*) FROM claims_held) AS claims_held
