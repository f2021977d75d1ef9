-- inorder admin/unregister
-- Removes a consumer, or one instance of it.
-- $1 text     consumer
-- $2 text     instance
-- $3 text     by: NULL for the session's user
-- $4 text     why
-- $5 boolean  force
SELECT id, at, by, action, consumer, instance, partition, why, before, after
FROM inorder.unregister(consumer => $1::text, instance => $2::text, by => $3::text, why => $4::text, force => $5::boolean)
