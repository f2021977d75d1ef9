-- inorder admin/trace_back
-- An event, its cause, the cause of that, and so on.
-- $1 uuid  of_event
-- $2 int   max_events
SELECT id, event_id, tenant_id, event_type, stream_type, stream_id, stream_version, correlation_id, causation_id, created_by, recorded_at
FROM inorder.trace_back(of_event => $1::uuid, max_events => $2::int)
