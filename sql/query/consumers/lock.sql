-- inorder consumers/lock
-- Locks a state row that has something to do, and says how it stands; one round trip decides whether a pass runs.
-- Nothing is locked, and nothing written, where there is nothing to do. The advisory lock makes the holder's pid visible.
-- $1 text    consumer
-- $2 text    instance
-- $3 int     partition
-- $4 uuid    process: whose epoch
-- $5 int     revision: ours
-- $6 bigint  head: the safe head
WITH seen AS MATERIALIZED (
    SELECT *
    FROM inorder.consumers
    WHERE name = $1::text AND instance = $2::text AND partition = $3::int
),
locked AS MATERIALIZED (
    SELECT *
    FROM inorder.consumers
    WHERE name = $1::text AND instance = $2::text AND partition = $3::int
        AND revision <= $5::int
        AND (
            status = 'idle' AND (next_attempt_at IS NULL OR next_attempt_at <= clock_timestamp())
            OR status = 'dead' AND next_attempt_at <= clock_timestamp()
        )
        AND (
            position < $6::bigint
            OR EXISTS (
                SELECT FROM inorder.dead_letters AS d
                WHERE d.consumer = $1::text AND d.instance = $2::text AND d.partition = $3::int
                    AND d.state = 'retry_requested'
            )
        )
    FOR NO KEY UPDATE SKIP LOCKED
)
SELECT l.name IS NOT NULL AS locked,
       r.position, r.status, r.attempts, r.faults, r.rearms, r.revision, r.failed_event_id, r.last_error,
       (SELECT e.id FROM inorder.events AS e WHERE e.event_id = r.failed_event_id) AS failed_at,
       r.next_attempt_at, (extract(epoch FROM r.next_attempt_at) - extract(epoch FROM clock_timestamp()))::float8 AS due_in,
       lower(p.missing) AS pruned_from, upper(p.missing) - 1 AS pruned_to,
       CASE WHEN l.name IS NOT NULL THEN pg_advisory_xact_lock('inorder.consumers'::regclass::oid::int, l.lock_key)::text END AS advisory,
       CASE WHEN l.name IS NOT NULL THEN pg_current_xact_id()::text END AS transaction_id,
       CASE WHEN l.name IS NOT NULL THEN (
           SELECT min(d.id)
           FROM inorder.dead_letters AS d
           WHERE d.consumer = $1::text AND d.instance = $2::text AND d.partition = $3::int
               AND d.state = 'retry_requested'
       ) END AS retry,
       (SELECT epoch FROM inorder.instances WHERE id = $4::uuid) AS epoch,
       pg_backend_pid() AS backend
FROM seen AS s
LEFT JOIN locked AS l ON true
CROSS JOIN LATERAL (
    SELECT coalesce(l.position, s.position) AS position,
           coalesce(l.status, s.status) AS status,
           coalesce(l.attempts, s.attempts) AS attempts,
           coalesce(l.faults, s.faults) AS faults,
           coalesce(l.rearms, s.rearms) AS rearms,
           coalesce(l.revision, s.revision) AS revision,
           CASE WHEN l.name IS NOT NULL THEN l.accepted_to ELSE s.accepted_to END AS accepted_to,
           CASE WHEN l.name IS NOT NULL THEN l.event_types ELSE s.event_types END AS event_types,
           CASE WHEN l.name IS NOT NULL THEN l.failed_event_id ELSE s.failed_event_id END AS failed_event_id,
           CASE WHEN l.name IS NOT NULL THEN l.last_error ELSE s.last_error END AS last_error,
           CASE WHEN l.name IS NOT NULL THEN l.next_attempt_at ELSE s.next_attempt_at END AS next_attempt_at
) AS r
CROSS JOIN LATERAL (SELECT inorder.pruned_unread(r.position, r.accepted_to, r.event_types) AS missing) AS p
