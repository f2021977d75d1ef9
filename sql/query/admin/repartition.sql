-- inorder admin/repartition
-- Splits a consumer into another number of partitions.
-- $1 text     consumer
-- $2 text     instance
-- $3 text     by: NULL for the session's user
-- $4 text     why
-- $5 boolean  force
-- $6 int      partitions
SELECT id, at, by, action, consumer, instance, partition, why, before, after
FROM inorder.repartition(
    consumer => $1::text, instance => $2::text, by => $3::text, why => $4::text, force => $5::boolean, partitions => $6::int
)
