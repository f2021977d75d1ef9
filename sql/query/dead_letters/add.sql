-- inorder dead_letters/add
-- Records an event that is passed over.
-- $1 text    consumer
-- $2 text    instance
-- $3 int     partition
-- $4 bigint  position: the event's id
-- $5 uuid    event_id
-- $6 text    event_type
-- $7 int     attempts
-- $8 text    error
-- $9 text    reason
INSERT INTO inorder.dead_letters (consumer, instance, partition, position, event_id, event_type, attempts, error, reason)
VALUES ($1::text, $2::text, $3::int, $4::bigint, $5::uuid, $6::text, $7::int, $8::text, $9::text)
