-- inorder admin/skip_poison
-- Passes over the next event of a consumer, if it is the expected one.
-- $1 text     consumer
-- $2 text     instance
-- $3 int      partition: NULL for all
-- $4 text     by: NULL for the session's user
-- $5 text     why
-- $6 boolean  force
-- $7 uuid     expected_event_id
SELECT id, at, by, action, consumer, instance, partition, why, before, after
FROM inorder.skip_poison(
    consumer => $1::text, instance => $2::text, partition => $3::int, by => $4::text, why => $5::text, force => $6::boolean,
    expected_event_id => $7::uuid
)
