-- inorder verify/effects_runs
-- Writes down what was run, for the comparison.
-- $1 text[]    handlers
-- $2 uuid[]    event_ids
-- $3 bigint[]  numbers
-- $4 bigint[]  started: microseconds since 1970
-- $5 boolean[] accepted
INSERT INTO inorder.verify_runs (handler, event_id, number, started, accepted)
SELECT r.handler, r.event_id, r.number, timestamptz 'epoch' + r.started * interval '1 microsecond', r.accepted
FROM unnest($1::text[], $2::uuid[], $3::bigint[], $4::bigint[], $5::boolean[]) AS r (handler, event_id, number, started, accepted)
