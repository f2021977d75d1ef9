-- inorder events/page
-- The next events above an id, up to a bound, in id order.
-- $1 bigint  position: above this id
-- $2 bigint  bound: up to this id; never beyond the safe head
-- $3 text[]  event_types: NULL for every type
-- $4 int     partitions
-- $5 int     partition
-- $6 bigint  limit
SELECT id, event_id, tenant_id, stream_type, stream_id, stream_version, stream_hash, event_type, schema_version,
       payload, metadata, correlation_id, causation_id, created_by, recorded_at
FROM inorder.events
WHERE id > $1::bigint
    AND id <= $2::bigint
    AND ($3::text[] IS NULL OR event_type = ANY ($3::text[]))
    AND ($4::int = 1 OR (stream_hash & 2147483647) % $4::int = $5::int)
ORDER BY id
LIMIT $6::bigint
