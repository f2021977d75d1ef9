-- inorder ledger/extend
-- Renews leases. A claim that was lost stays lost: the answer names those that are held on.
-- $1 uuid[]   event_ids
-- $2 bigint[] tokens
-- $3 text     handler
-- $4 float8   lease: seconds
UPDATE inorder.ledger AS l
SET lease_until = clock_timestamp() + make_interval(secs => $4::float8)
FROM unnest($1::uuid[], $2::bigint[]) AS s (event_id, token)
WHERE l.event_id = s.event_id AND l.handler = $3::text AND l.token = s.token AND l.status = 'in_progress'
RETURNING l.event_id, l.token, l.lease_until
