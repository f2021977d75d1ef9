-- inorder handoffs/take
-- Takes events for one side, where the other side has not; answers who has each of them.
-- Durable when it answers, whatever synchronous_commit says. In the order of the keys, so that two batches do not deadlock.
-- $1 text    scope
-- $2 text    taken_by: 'direct' or 'delivery'
-- $3 uuid[]  keys
WITH durable AS MATERIALIZED (
    SELECT CASE
        WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'on', true)
    END AS synchronous_commit
), asked AS (
    SELECT DISTINCT a.key FROM unnest($3::uuid[]) AS a (key)
), known AS (
    SELECT h.key, h.taken_by, h.ran_at
    FROM asked AS a
    CROSS JOIN LATERAL (
        SELECT r.key, r.taken_by, r.ran_at
        FROM inorder.handoffs AS r
        WHERE r.scope = $1::text AND r.key = a.key
        -- Each looked up: a plan that was made while there were few rows would read all of the scope.
        OFFSET 0
    ) AS h
), taken AS (
    INSERT INTO inorder.handoffs AS h (scope, key, taken_by)
    SELECT $1::text, a.key, $2::text
    FROM asked AS a
    WHERE NOT EXISTS (SELECT FROM known AS k WHERE k.key = a.key)
    ORDER BY a.key
    -- Somebody was faster by less than a snapshot. The row stays as it is: this is how it is read.
    ON CONFLICT ON CONSTRAINT handoffs_pkey DO UPDATE SET taken_by = h.taken_by
    RETURNING h.key, h.taken_by, h.ran_at
), whole AS (
    SELECT k.key, k.taken_by, k.ran_at FROM known AS k
    UNION ALL
    SELECT t.key, t.taken_by, t.ran_at FROM taken AS t
)
SELECT w.key, w.taken_by, w.ran_at IS NOT NULL AS ran
FROM whole AS w
CROSS JOIN durable AS d
