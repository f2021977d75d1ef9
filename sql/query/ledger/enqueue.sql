-- inorder ledger/enqueue
-- Takes events into the queue of a handler, in the transaction that moves the row on, and leases them to us at once. The answer names
-- those that are ours to run; the others are there already, or wait for others of their stream.
-- $1 uuid[]    event_ids
-- $2 bigint[]  positions
-- $3 text[]    streams: NULL for events that wait for no other
-- $4 text      handler
-- $5 float8    lease: seconds
-- $6 uuid      owner: this process
WITH taken AS (
    INSERT INTO inorder.ledger (event_id, handler, status, token, lease_until, position, stream, owner)
    SELECT a.event_id, $4::text,
           CASE WHEN w.waits THEN 'pending' ELSE 'in_progress' END,
           CASE WHEN w.waits THEN 0 ELSE nextval('inorder.fencing') END,
           CASE WHEN NOT w.waits THEN clock_timestamp() + make_interval(secs => $5::float8) END,
           a.position, a.stream, $6::uuid
    FROM unnest($1::uuid[], $2::bigint[], $3::text[]) AS a (event_id, position, stream)
    CROSS JOIN LATERAL (
        SELECT a.stream IS NOT NULL AND EXISTS (
            SELECT
            FROM inorder.ledger AS u
            WHERE u.handler = $4::text AND u.stream = a.stream AND u.status IN ('pending', 'in_progress')
        ) AS waits
    ) AS w
    ON CONFLICT ON CONSTRAINT ledger_pkey DO NOTHING
    RETURNING event_id, token
)
SELECT event_id, token
FROM taken
WHERE token > 0
