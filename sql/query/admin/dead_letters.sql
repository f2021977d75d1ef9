-- inorder admin/dead_letters
-- What was passed over, oldest first.
-- $1 text    consumer: NULL for all
-- $2 text    state: NULL for every state
-- $3 int     max_rows
-- $4 bigint  after_id
SELECT id, consumer, instance, partition, position, position_to, event_id, event_type, attempts, error, reason, state,
       created_at, created_by, updated_at, updated_by
FROM inorder.dead_letters(consumer => $1::text, state => $2::text, max_rows => $3::int, after_id => $4::bigint)
