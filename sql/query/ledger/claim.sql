-- inorder ledger/claim
-- Claims what nobody has done and nobody holds, and says of the rest how it stands. A row of the answer for each key; nothing in its
-- `status` and no token: somebody else was claiming it, ask again. A claim whose lease ran out is a fault of whoever held it.
-- $1 uuid[]   event_ids
-- $2 bigint[] positions: of the events in the log; NULL for a key that is none
-- $3 text     handler
-- $4 float8   lease: seconds
-- $5 uuid     owner: this process
-- $6 boolean  repeat: below the floor, too, and what is dead
-- $7 text     consumer: whose row must be leased, as the next three say; NULL for a claim outside of any consumer
-- $8 text     instance
-- $9 int      partition
-- $10 bigint  lease_token
WITH asked AS (
    SELECT a.event_id, a.position,
           NOT $6::boolean AND coalesce(
               a.position <= (SELECT f.floor FROM inorder.ledger_floors AS f WHERE f.handler = $3::text), false
           ) AS below_floor
    FROM unnest($1::uuid[], $2::bigint[]) AS a (event_id, position)
),
claimed AS (
    INSERT INTO inorder.ledger AS l (event_id, handler, status, token, lease_until, position, owner)
    SELECT a.event_id, $3::text, 'in_progress', nextval('inorder.fencing'),
           clock_timestamp() + make_interval(secs => $4::float8), a.position, $5::uuid
    FROM asked AS a
    WHERE NOT a.below_floor
        AND ($7::text IS NULL OR EXISTS (
            SELECT
            FROM inorder.consumers AS h
            WHERE h.name = $7::text AND h.instance = $8::text AND h.partition = $9::int
                AND h.lease_token = $10::bigint AND h.lease_until > clock_timestamp()
        ))
    ORDER BY a.event_id
    ON CONFLICT ON CONSTRAINT ledger_pkey
    -- Drawn again, under the lock: so a later claim has the higher number.
    DO UPDATE SET status = 'in_progress', token = nextval('inorder.fencing'),
        lease_until = clock_timestamp() + make_interval(secs => $4::float8), next_attempt_at = NULL,
        faults = l.faults + CASE l.status WHEN 'in_progress' THEN 1 ELSE 0 END,
        position = coalesce(l.position, excluded.position), owner = excluded.owner, updated_at = clock_timestamp()
    WHERE l.status = 'pending' AND (l.next_attempt_at IS NULL OR l.next_attempt_at <= clock_timestamp())
        OR l.status = 'in_progress' AND l.lease_until <= clock_timestamp()
        OR l.status = 'dead' AND $6::boolean
    RETURNING l.event_id, l.token, l.attempts, l.faults
)
SELECT a.event_id, a.below_floor, c.token, coalesce(c.attempts, l.attempts) AS attempts, coalesce(c.faults, l.faults) AS faults,
       l.status, coalesce(l.lease_until, l.next_attempt_at) AS until,
       (extract(epoch FROM coalesce(l.lease_until, l.next_attempt_at)) - extract(epoch FROM clock_timestamp()))::float8 AS held_for
FROM asked AS a
LEFT JOIN claimed AS c ON c.event_id = a.event_id
LEFT JOIN inorder.ledger AS l ON l.event_id = a.event_id AND l.handler = $3::text AND c.event_id IS NULL
