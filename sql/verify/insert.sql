-- inorder verify/insert
-- A bare INSERT into the log.
-- $1 uuid[]  event_ids
-- $2 text[]  event_types
-- $3 text[]  payloads
INSERT INTO inorder.events (event_id, event_type, payload)
SELECT given.event_id, given.event_type, given.payload::json
FROM unnest($1::uuid[], $2::text[], $3::text[]) AS given (event_id, event_type, payload)
RETURNING id
