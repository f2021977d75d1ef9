-- inorder admin/prune
-- Deletes old events that nobody needs: one bounded step.
-- $1 timestamptz  before
-- $2 text[]       types: NULL for every type
-- $3 boolean      dry_run
-- $4 int          max_events
-- $5 text         by: NULL for the session's user
-- $6 text         why
SELECT deleted, up_to, more, blocked_by
FROM inorder.prune(
    before => $1::timestamptz, types => $2::text[], dry_run => $3::boolean, max_events => $4::int, by => $5::text, why => $6::text
)
