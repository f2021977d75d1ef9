-- inorder admin/handoffs_forget
-- Forgets which side has the events of the hand-offs that fit.
-- $1 text     scope: NULL for every scope
-- $2 text     state: NULL for every state
-- $3 float8   older_than: seconds since it was taken, at least; NULL for any age
-- $4 int      max_rows
-- $5 text     after_scope: the last of the part before; NULL for the first part
-- $6 uuid     after_key
-- $7 text     by: NULL for the session's user
-- $8 text     why
-- $9 boolean  force: also what the direct path still has to run
SELECT forgotten, left_out, more, last_scope, last_event_id
FROM inorder.handoffs_forget(
    of_scope => $1::text, in_state => $2::text, older_than => make_interval(secs => $3::float8), max_rows => $4::int,
    after_scope => $5::text, after_key => $6::uuid, by => $7::text, why => $8::text, force => $9::boolean
)
