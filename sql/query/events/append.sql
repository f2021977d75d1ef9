-- inorder events/append
-- Appends a batch, all or nothing, and answers what became of it.
-- $1 bigint   expected: NULL any, 0 no event yet, -1 at least one, n the last event has version n
-- $2 uuid[]   event_ids
-- $3 text[]   event_types
-- $4 text[]   payloads
-- $5 text[]   metadata: this and all below NULL where no event has such a thing
-- $6 text[]   stream_types
-- $7 text[]   stream_ids
-- $8 text[]   tenant_ids
-- $9 int[]    schema_versions
-- $10 uuid[]  correlation_ids
-- $11 uuid[]  causation_ids
-- $12 text[]  created_by
-- $13 int     max_bytes: of a payload, and of metadata
SELECT outcome, ids, already, actual, mismatch_event_id, mismatch_id, refusal
FROM inorder.append_events(
    $1::bigint, $2::uuid[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::int[],
    $10::uuid[], $11::uuid[], $12::text[], $13::int)
