-- inorder admin/ledger_prune
-- Forgets what was done long ago: one bounded step.
-- $1 float8  older_than: seconds
-- $2 text    by: NULL for the session's user
-- $3 text    why
SELECT deleted, more
FROM inorder.ledger_prune(older_than => make_interval(secs => $1::float8), by => $2::text, why => $3::text)
