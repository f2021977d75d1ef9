-- inorder admin/handoff_rows
-- Hand-offs.
-- $1 uuid    key: NULL for every event
-- $2 text    scope: NULL for every scope
-- $3 text    state: NULL for every state
-- $4 float8  older_than: seconds since it was taken, at least; NULL for any age
-- $5 int     max_rows
-- $6 text    after_scope: the last of the part before; NULL for the first part
-- $7 uuid    after_key
SELECT scope, event_id, state, taken_at, ran_at, position, event_type
FROM inorder.handoff_rows(
    key => $1::uuid, of_scope => $2::text, in_state => $3::text, older_than => make_interval(secs => $4::float8), max_rows => $5::int,
    after_scope => $6::text, after_key => $7::uuid
)
