-- inorder admin/retry_dead_letter
-- Asks for one more delivery of a dead letter's event.
-- $1 bigint  letter_id
-- $2 text    by: NULL for the session's user
-- $3 text    why
SELECT id, at, by, action, consumer, instance, partition, why, before, after
FROM inorder.retry_dead_letter(letter_id => $1::bigint, by => $2::text, why => $3::text)
