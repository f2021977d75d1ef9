-- inorder ledger/claim
-- Claims what nobody has done and nobody holds, and says of the rest how it stands. A row of the answer for each key; nothing in its
-- `status` and no token: somebody else was claiming it, ask again. A claim whose lease ran out is a fault of whoever held it.
-- What has a row is as the row says; what has none, at or below the floor, may have been done: that is not claimed.
-- $1 uuid[]   event_ids
-- $2 bigint[] positions: of the events in the log; NULL where it is not known, or the key is none
-- $3 text     handler
-- $4 float8   lease: seconds
-- $5 uuid     owner: this process
-- $6 boolean  repeat: below the floor, too, and what is dead
-- $7 text     consumer: whose row must be leased, as the next three say; NULL for a claim outside of any consumer
-- $8 text     instance
-- $9 int      partition
-- $10 bigint  lease_token
WITH asked AS (
    SELECT a.event_id, a.position, l.status, l.attempts, l.faults, coalesce(l.lease_until, l.next_attempt_at) AS until,
           CASE l.status
               WHEN 'pending' THEN coalesce(l.next_attempt_at <= clock_timestamp(), true)
               WHEN 'in_progress' THEN l.lease_until <= clock_timestamp()
               WHEN 'dead' THEN $6::boolean
               ELSE false
           END AS free,
           CASE
               WHEN $6::boolean OR l.status IS NOT NULL OR f.floor IS NULL THEN false
               ELSE coalesce(
                   coalesce(a.position, (SELECT e.id FROM inorder.events AS e WHERE e.event_id = a.event_id)) <= f.floor, false
               )
           END AS below_floor
    FROM unnest($1::uuid[], $2::bigint[]) AS a (event_id, position)
    -- One by one, by the key, however many rows the planner believes that there are.
    LEFT JOIN LATERAL (
        SELECT r.status, r.attempts, r.faults, r.lease_until, r.next_attempt_at
        FROM inorder.ledger AS r
        WHERE r.event_id = a.event_id AND r.handler = $3::text
        LIMIT 1
    ) AS l ON true
    LEFT JOIN inorder.ledger_floors AS f ON f.handler = $3::text
),
claimed AS (
    INSERT INTO inorder.ledger AS l (event_id, handler, status, token, lease_until, position, owner)
    SELECT a.event_id, $3::text, 'in_progress', nextval('inorder.fencing'),
           clock_timestamp() + make_interval(secs => $4::float8), a.position, $5::uuid
    FROM asked AS a
    -- A row that was seen done is not made anew when it is forgotten at this moment.
    WHERE NOT a.below_floor AND a.status IS DISTINCT FROM 'done'
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
SELECT a.event_id, a.below_floor, c.token, coalesce(c.attempts, a.attempts) AS attempts, coalesce(c.faults, a.faults) AS faults,
       -- What was free and is not ours is somebody else's since.
       CASE WHEN c.event_id IS NULL AND NOT a.free THEN a.status END AS status, a.until,
       (extract(epoch FROM a.until) - extract(epoch FROM clock_timestamp()))::float8 AS held_for
FROM asked AS a
LEFT JOIN claimed AS c ON c.event_id = a.event_id
