-- inorder admin/trace_forward
-- What followed from events, in a part of the log.
-- $1 uuid[]  event_ids: what is known already
-- $2 uuid    correlation: NULL for none
-- $3 bigint  after_id: above this id
-- $4 bigint  to_id: up to this id
-- $5 int     max_events
SELECT id, event_id, tenant_id, event_type, stream_type, stream_id, stream_version, correlation_id, causation_id, created_by, recorded_at
FROM inorder.trace_forward(
    event_ids => $1::uuid[], of_correlation => $2::uuid, after_id => $3::bigint, to_id => $4::bigint, max_events => $5::int
)
