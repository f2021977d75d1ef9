-- inorder events/find
-- One event, by the name that it has outside the log.
-- $1 uuid  event_id
SELECT id, event_id, tenant_id, stream_type, stream_id, stream_version, stream_hash, event_type, schema_version,
       payload, metadata, correlation_id, causation_id, created_by, recorded_at
FROM inorder.events
WHERE event_id = $1::uuid
