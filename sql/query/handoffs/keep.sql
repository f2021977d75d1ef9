-- inorder handoffs/keep
-- Says how long the rows of a scope are kept, for whoever keeps house while no program of that scope runs.
-- $1 text    scope
-- $2 float8  seconds for which those of the direct path are kept, since it has run the event
-- $3 float8  seconds for which those of deliveries are kept
INSERT INTO inorder.handoff_scopes AS s (scope, keep, keep_deliveries)
VALUES ($1::text, make_interval(secs => $2::float8), make_interval(secs => $3::float8))
ON CONFLICT ON CONSTRAINT handoff_scopes_pkey
DO UPDATE SET keep = excluded.keep, keep_deliveries = excluded.keep_deliveries, updated_at = clock_timestamp()
WHERE (s.keep, s.keep_deliveries) IS DISTINCT FROM (excluded.keep, excluded.keep_deliveries)
