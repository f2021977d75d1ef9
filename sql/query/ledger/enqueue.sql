-- inorder ledger/enqueue
-- Takes events into the queue of a handler and moves the consumer's row past them, in one statement, so that no transaction is open
-- between two of ours. They are leased to us at once. Only from where the row is to stand, and on the server that the events were
-- read from. The answer has one row at least when the row was moved; those with an event are ours to run, the others are there
-- already, or wait for others of their stream.
-- $1  uuid[]    event_ids: sorted, as rows are locked in that order
-- $2  bigint[]  positions
-- $3  text[]    streams: NULL for events that wait for no other
-- $4  text      handler
-- $5  float8    lease: seconds
-- $6  uuid      owner: this process
-- $7  text      consumer
-- $8  text      instance
-- $9  int       partition
-- $10 int       revision: ours
-- $11 uuid      epoch
-- $12 bigint    from: where the row stands
-- $13 bigint    to
WITH locked AS (
    SELECT lock_key
    FROM inorder.consumers
    WHERE name = $7::text AND instance = $8::text AND partition = $9::int
        AND revision <= $10::int
        AND status = 'idle'
        AND position = $12::bigint
        AND inorder.pruned_unread(position, accepted_to, event_types) IS NULL
        AND EXISTS (SELECT FROM inorder.instances AS i WHERE i.id = $6::uuid AND i.epoch = $11::uuid)
    FOR NO KEY UPDATE SKIP LOCKED
),
moved AS (
    UPDATE inorder.consumers AS c
    SET position = $13::bigint, owner = $6::uuid, seen_at = clock_timestamp(), updated_at = clock_timestamp()
    FROM locked AS l
    WHERE c.lock_key = l.lock_key
    RETURNING 1
),
taken AS (
    INSERT INTO inorder.ledger (event_id, handler, status, token, lease_until, position, stream, owner)
    SELECT a.event_id, $4::text,
           CASE WHEN w.waits THEN 'pending' ELSE 'in_progress' END,
           CASE WHEN w.waits THEN 0 ELSE nextval('inorder.fencing') END,
           CASE WHEN NOT w.waits THEN clock_timestamp() + make_interval(secs => $5::float8) END,
           a.position, a.stream, $6::uuid
    FROM moved
    CROSS JOIN unnest($1::uuid[], $2::bigint[], $3::text[]) AS a (event_id, position, stream)
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
SELECT t.event_id, t.token
FROM moved
LEFT JOIN taken AS t ON t.token > 0
