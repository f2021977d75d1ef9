-- inorder verify/effects_findings
-- What must not be: each finding with one example.
-- $1 text[]  handlers
-- $2 text[]  types: of the events that each of them wants; NULL for every type
WITH standing AS MATERIALIZED (
    SELECT r.handler, r.event_id, r.number, c.status, c.token, c.lease_until > r.started AS is_valid
    FROM inorder.verify_runs AS r
    CROSS JOIN LATERAL (
        SELECT c.status, c.token, c.lease_until
        FROM inorder.verify_claims AS c
        WHERE c.handler = r.handler AND c.event_id = r.event_id AND c.at <= r.started
        ORDER BY c.n DESC
        LIMIT 1
    ) AS c
),
-- Claims that were made while another's was valid.
taken AS MATERIALIZED (
    SELECT c.handler, c.event_id, c.token
    FROM (
        SELECT c.handler, c.event_id, c.token, c.at, lag(c.token) OVER w AS before, lag(c.status) OVER w AS status,
               lag(c.lease_until) OVER w AS lease_until
        FROM inorder.verify_claims AS c
        WINDOW w AS (PARTITION BY c.handler, c.event_id ORDER BY c.n)
    ) AS c
    WHERE c.status = 'in_progress' AND c.token <> c.before AND c.lease_until > c.at
),
writes AS (
    SELECT c.handler || ' ' || c.event_id AS what, c.who,
           first_value(c.who) OVER (PARTITION BY c.handler, c.event_id, c.token ORDER BY c.n) AS holder
    FROM inorder.verify_claims AS c
    WHERE c.token > 0
    UNION ALL
    SELECT l.name || '/' || l.partition, l.who,
           first_value(l.who) OVER (PARTITION BY l.name, l.instance, l.partition, l.lease_token ORDER BY l.n)
    FROM inorder.verify_leases AS l
    WHERE l.lease_token > 0
)
SELECT 'started_while_claimed' AS finding, count(*) AS times, min(s.handler || ' ' || s.event_id) AS example
FROM standing AS s
LEFT JOIN taken AS t ON t.handler = s.handler AND t.event_id = s.event_id AND t.token = s.number
WHERE s.status = 'in_progress' AND s.is_valid AND s.token <> s.number OR t.token IS NOT NULL
UNION ALL
SELECT 'runs_after_done', count(*), min(handler || ' ' || event_id)
FROM standing
WHERE status = 'done'
UNION ALL
SELECT 'unfenced_writes', count(*), min(what || ' by ' || who || ' for ' || holder)
FROM writes
WHERE who <> holder
UNION ALL
SELECT 'never_run', count(*), min(h.handler || ' ' || e.event_id)
FROM unnest($1::text[], $2::text[]) AS h (handler, event_type)
JOIN inorder.events AS e ON h.event_type IS NULL OR e.event_type = h.event_type
WHERE NOT EXISTS (
    SELECT FROM inorder.verify_runs AS r WHERE r.handler = h.handler AND r.event_id = e.event_id AND r.accepted
)
UNION ALL
SELECT 'out_of_stream_order', count(*), min(handler || ' ' || event_id)
FROM (
    SELECT r.handler, r.event_id, e.id, max(e.id) OVER (
        PARTITION BY e.stream_type, e.stream_id ORDER BY r.started ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS before
    FROM inorder.verify_runs AS r
    JOIN inorder.events AS e ON e.event_id = r.event_id
    WHERE r.handler = 'ordered' AND r.accepted AND e.stream_id IS NOT NULL
) AS runs
WHERE id < before
