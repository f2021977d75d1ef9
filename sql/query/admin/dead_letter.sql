-- inorder admin/dead_letter
-- One dead letter behind its event: first the columns of events/page, NULL where the event was pruned, and for a range.
-- $1 bigint  letter_id
SELECT e.id AS event_position, e.event_id AS event_name, e.tenant_id, e.stream_type, e.stream_id, e.stream_version, e.stream_hash,
       e.event_type AS type_of_event, e.schema_version, e.payload, e.metadata, e.correlation_id, e.causation_id,
       e.created_by AS event_created_by, e.recorded_at,
       l.id, l.consumer, l.instance, l.partition, l.position, l.position_to, l.event_id, l.event_type, l.attempts, l.error, l.reason,
       l.state, l.created_at, l.created_by, l.updated_at, l.updated_by
FROM inorder.dead_letter($1::bigint) AS l
LEFT JOIN inorder.events AS e ON e.event_id = l.event_id
