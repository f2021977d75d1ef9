-- inorder admin/dead_letters
-- What was passed over, oldest first. NULL fits every letter.
-- $1 text    consumer
-- $2 text    state
-- $3 int     max_rows
-- $4 bigint  after_id
-- $5 text    instance
-- $6 text    event_type
-- $7 text    reason
-- $8 text    error: words that are in it
-- $9 bigint  to_id
SELECT id, consumer, instance, partition, position, position_to, event_id, event_type, attempts, error, reason, state,
       created_at, created_by, updated_at, updated_by
FROM inorder.dead_letters(
    consumer => $1::text, state => $2::text, max_rows => $3::int, after_id => $4::bigint, instance => $5::text, event_type => $6::text,
    reason => $7::text, error => $8::text, to_id => $9::bigint
)
