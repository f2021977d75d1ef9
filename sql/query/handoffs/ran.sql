-- inorder handoffs/ran
-- Records that the direct path has run events, also those that it took while the table was away; answers who has each of them.
-- $1 text    scope
-- $2 uuid[]  keys
WITH asked AS (
    SELECT DISTINCT a.key FROM unnest($2::uuid[]) AS a (key)
)
INSERT INTO inorder.handoffs AS h (scope, key, taken_by, ran_at)
SELECT $1::text, a.key, 'direct', clock_timestamp()
FROM asked AS a
ORDER BY a.key
ON CONFLICT ON CONSTRAINT handoffs_pkey
DO UPDATE SET ran_at = CASE WHEN h.taken_by = 'direct' THEN coalesce(h.ran_at, excluded.ran_at) END
RETURNING h.key, h.taken_by, h.ran_at IS NOT NULL AS ran
