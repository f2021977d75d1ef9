-- inorder verify/effect
-- What a handler does: one row an event, numbered behind the lane's last.
-- $1 text      lane
-- $2 bigint[]  ids
-- $3 uuid[]    event_ids
-- $4 text      worker
INSERT INTO inorder.verify_effects (lane, seq, id, event_id, worker)
SELECT $1::text, last.seq + given.ord, given.id, given.event_id, $4::text
FROM (
    SELECT coalesce(max(seq), 0) AS seq
    FROM inorder.verify_effects
    WHERE lane = $1::text
) AS last
CROSS JOIN unnest($2::bigint[], $3::uuid[]) WITH ORDINALITY AS given (id, event_id, ord)
