-- inorder events/receive
-- Receives messages from outside: appends those that are new, records them for the queued consumers that want them, and answers
-- what became of each.
-- $1 text     source
-- $2 text[]   external_ids
-- $3 uuid[]   event_ids: derived from both
-- $4 text[]   event_types
-- $5 text[]   payloads
-- $6 text[]   metadata: this and all below NULL where no message has such a thing
-- $7 text[]   stream_types
-- $8 text[]   stream_ids
-- $9 text[]   tenant_ids
-- $10 int[]   schema_versions
-- $11 uuid[]  correlation_ids
-- $12 uuid[]  causation_ids
-- $13 text[]  created_by
-- $14 int     max_bytes: of a payload, and of metadata
SELECT outcomes, ids, handlers, refusal
FROM inorder.receive_events(
    $1::text, $2::text[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[], $10::int[],
    $11::uuid[], $12::uuid[], $13::text[], $14::int)
