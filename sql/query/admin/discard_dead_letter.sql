-- inorder admin/discard_dead_letter
-- Settles a dead letter without another delivery.
-- $1 bigint  letter_id
-- $2 text    by: NULL for the session's user
-- $3 text    why
SELECT id, at, by, action, consumer, instance, partition, why, before, after
FROM inorder.discard_dead_letter(letter_id => $1::bigint, by => $2::text, why => $3::text)
