-- inorder consumers/register
-- Registers one state row, without touching an existing position.
-- $1 text    consumer
-- $2 text    instance
-- $3 int     partition
-- $4 text    kind
-- $5 int     revision
-- $6 text[]  event_types: NULL for every type
-- $7 int     partitions
-- $8 int     max_attempts
-- $9 bigint  start_after
-- $10 bigint  rejoin_at: where a row that had expired goes on; NULL for where it was
SELECT outcome, registered, was, was_position
FROM inorder.register($1::text, $2::text, $3::int, $4::text, $5::int, $6::text[], $7::int, $8::int, $9::bigint, $10::bigint)
