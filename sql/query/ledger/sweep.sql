-- inorder ledger/sweep
-- Claims what is due in the queue of a handler: what waits for its next attempt, was recorded by a producer, or was left behind by a
-- process that is heard of no more, which is a fault of its row. In order: of a stream the first, and, unless that has failed before,
-- those behind it that are due, too; and only what the consumer has passed, as others may be in front of the rest. What is no event
-- of the log, or not any more, is left alone. Nothing while the consumer is disabled, expired, gone, or another revision's.
-- $1 text    handler
-- $2 bigint  limit
-- $3 float8  lease: seconds
-- $4 uuid    owner: this process
-- $5 text    consumer
-- $6 text    instance
-- $7 boolean in_order
-- $8 int     revision: ours
WITH due AS (
    SELECT l.event_id, l.handler, v.id, l.stream, l.attempts + l.faults AS failures
    FROM inorder.ledger AS l
    CROSS JOIN LATERAL (
        SELECT k.id
        FROM inorder.events AS k
        WHERE k.event_id = l.event_id
        OFFSET 0
    ) AS v
    WHERE l.handler = $1::text AND l.status IN ('pending', 'in_progress')
        AND coalesce(l.lease_until, l.next_attempt_at, l.created_at) <= clock_timestamp()
        AND EXISTS (
            SELECT
            FROM inorder.consumers AS c
            WHERE c.name = $5::text AND c.instance = $6::text AND c.status NOT IN ('disabled', 'expired') AND c.revision <= $8::int
        )
        AND (
            NOT $7::boolean OR l.stream IS NULL
            OR l.position <= (SELECT min(c.position) FROM inorder.consumers AS c WHERE c.name = $5::text AND c.instance = $6::text)
            AND NOT EXISTS (
                SELECT
                FROM inorder.ledger AS f
                WHERE f.handler = l.handler AND f.stream = l.stream AND f.position < l.position
                    AND f.status IN ('pending', 'in_progress')
            )
        )
    ORDER BY coalesce(l.lease_until, l.next_attempt_at, l.created_at)
    LIMIT $2::bigint
    FOR NO KEY UPDATE OF l SKIP LOCKED
),
-- Whoever has the first of a stream may have those behind it. They are looked for together, up to the limit.
behind AS (
    SELECT n.event_id, n.handler, n.position, n.stream, r.place
    FROM due AS d
    CROSS JOIN LATERAL (
        SELECT w.event_id, w.place, bool_and(w.is_due) OVER (ORDER BY w.place) AS may_be_run
        FROM (
            SELECT f.event_id, row_number() OVER (ORDER BY f.position) AS place,
                   coalesce(f.lease_until, f.next_attempt_at, f.created_at) <= clock_timestamp()
                   AND f.position <= (SELECT min(c.position) FROM inorder.consumers AS c WHERE c.name = $5::text AND c.instance = $6::text)
                       AS is_due
            FROM inorder.ledger AS f
            WHERE f.handler = d.handler AND f.stream = d.stream AND f.position > d.id AND f.status IN ('pending', 'in_progress')
            ORDER BY f.position
            LIMIT (SELECT $2::bigint / greatest(count(*), 1) FROM due) - 1
        ) AS w
    ) AS r
    JOIN inorder.ledger AS n ON n.event_id = r.event_id AND n.handler = d.handler
    WHERE $7::boolean AND d.stream IS NOT NULL AND d.failures = 0 AND r.may_be_run
        AND n.status IN ('pending', 'in_progress')
        AND coalesce(n.lease_until, n.next_attempt_at, n.created_at) <= clock_timestamp()
    FOR NO KEY UPDATE OF n SKIP LOCKED
),
-- None in front of which another is missing.
together AS (
    SELECT event_id, handler, id FROM due
    UNION ALL
    SELECT b.event_id, b.handler, b.position
    FROM (SELECT event_id, handler, position, place, row_number() OVER (PARTITION BY stream ORDER BY place) AS count FROM behind) AS b
    WHERE b.place = b.count
),
claimed AS (
    UPDATE inorder.ledger AS l
    SET status = 'in_progress', token = nextval('inorder.fencing'),
        lease_until = clock_timestamp() + make_interval(secs => $3::float8), next_attempt_at = NULL,
        faults = l.faults + CASE l.status WHEN 'in_progress' THEN 1 ELSE 0 END,
        -- Whoever claimed it by its uuid did not say where it is.
        position = d.id, owner = $4::uuid, updated_at = clock_timestamp()
    FROM together AS d
    WHERE l.event_id = d.event_id AND l.handler = d.handler
    RETURNING l.event_id, l.token, l.attempts, l.faults
)
SELECT e.id, e.event_id, e.tenant_id, e.stream_type, e.stream_id, e.stream_version, e.stream_hash, e.event_type, e.schema_version,
       e.payload, e.metadata, e.correlation_id, e.causation_id, e.created_by, e.recorded_at, c.token, c.attempts, c.faults
FROM claimed AS c
CROSS JOIN LATERAL (
    SELECT v.id, v.event_id, v.tenant_id, v.stream_type, v.stream_id, v.stream_version, v.stream_hash, v.event_type, v.schema_version,
           v.payload, v.metadata, v.correlation_id, v.causation_id, v.created_by, v.recorded_at
    FROM inorder.events AS v
    WHERE v.event_id = c.event_id
    -- Each looked up: in the order of the log, all of it would be read.
    OFFSET 0
) AS e
ORDER BY e.id
