-- inorder verify/lane
-- Names a consumer row whose events are to be accounted for.
-- $1 text    lane
-- $2 text    name
-- $3 text    instance
-- $4 int     partition
-- $5 int     partitions
-- $6 text[]  event_types: NULL for every type
INSERT INTO inorder.verify_lanes (lane, name, instance, partition, partitions, event_types)
VALUES ($1::text, $2::text, $3::text, $4::int, $5::int, $6::text[])
