-- inorder admin/enable
-- Lets a disabled or expired consumer run again.
-- $1 text     consumer
-- $2 text     instance
-- $3 int      partition: NULL for all
-- $4 text     by: NULL for the session's user
-- $5 text     why
-- $6 boolean  force
SELECT id, at, by, action, consumer, instance, partition, why, before, after
FROM inorder.enable(
    consumer => $1::text, instance => $2::text, partition => $3::int, by => $4::text, why => $5::text, force => $6::boolean
)
