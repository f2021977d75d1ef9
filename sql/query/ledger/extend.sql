-- inorder ledger/extend
-- Renews leases. A claim that was lost stays lost: the answer names those that are held on.
-- $1 uuid[]   event_ids: sorted, as rows are locked in that order
-- $2 bigint[] tokens
-- $3 text     handler
-- $4 float8   lease: seconds
UPDATE inorder.ledger AS l
SET lease_until = clock_timestamp() + make_interval(secs => $4::float8)
FROM unnest($1::uuid[], $2::bigint[]) AS s (event_id, token)
-- Leased is in progress, said so that the index of what is due is of no use: one that finds the row by its key is.
WHERE l.event_id = s.event_id AND l.handler = $3::text AND l.token = s.token AND l.lease_until IS NOT NULL
RETURNING l.event_id, l.token, l.lease_until
