-- inorder admin/handoff_prune
-- Deletes what was kept of hand-offs long enough: one bounded step.
-- $1 text    scope: NULL for every scope
-- $2 float8  older_than: seconds; NULL for what each scope's programs have
-- $3 text    by: NULL for the session's user
-- $4 text    why
SELECT deleted, more
FROM inorder.handoff_prune(of_scope => $1::text, older_than => make_interval(secs => $2::float8), by => $3::text, why => $4::text)
