-- inorder admin/reset
-- Moves a consumer.
-- $1 text     consumer
-- $2 text     instance
-- $3 int      partition: NULL for all
-- $4 text     by: NULL for the session's user
-- $5 text     why
-- $6 boolean  force
-- $7 text     to_place: beginning, head or an id
-- $8 boolean  accept_pruned
-- $9 boolean  repeat_effects
-- $10 int     max_effects
SELECT id, at, by, action, consumer, instance, partition, why, before, after
FROM inorder.reset(
    consumer => $1::text, instance => $2::text, partition => $3::int, by => $4::text, why => $5::text, force => $6::boolean,
    to_place => $7::text, accept_pruned => $8::boolean, repeat_effects => $9::boolean, max_effects => $10::int
)
