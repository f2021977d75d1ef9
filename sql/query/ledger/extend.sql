-- inorder ledger/extend
-- Renews leases. A claim that was lost stays lost: the answer names those that are held on.
-- $1 uuid[]   event_ids: sorted, as rows are locked in that order
-- $2 bigint[] tokens
-- $3 text     handler
-- $4 float8   lease: seconds
UPDATE inorder.ledger AS l
SET lease_until = clock_timestamp() + make_interval(secs => $4::float8)
FROM (
    SELECT u.event_id, u.token, $3::text AS handler
    FROM unnest($1::uuid[], $2::bigint[])
        AS u (event_id, token)
    -- Kept apart, so that each row is found by its whole key.
    OFFSET 0
) AS s
-- Leased is in progress, said so that the index of what is due is of no use: one that finds the row by its key is.
WHERE l.event_id = s.event_id AND l.handler = s.handler AND l.token = s.token AND l.lease_until IS NOT NULL
RETURNING l.event_id, l.token, l.lease_until
