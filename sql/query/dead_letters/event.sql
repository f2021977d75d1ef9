-- inorder dead_letters/event
-- The event of a dead letter.
-- $1 bigint  id: the dead letter's
SELECT e.id, e.event_id, e.tenant_id, e.stream_type, e.stream_id, e.stream_version, e.stream_hash, e.event_type, e.schema_version,
       e.payload, e.metadata, e.correlation_id, e.causation_id, e.created_by, e.recorded_at
FROM inorder.dead_letters AS d
JOIN inorder.events AS e ON e.event_id = d.event_id
WHERE d.id = $1::bigint
