-- inorder admin/dead_letter_alone
-- As admin/dead_letter, for roles that may not read payloads: the columns of the event are NULL.
-- $1 bigint  letter_id
SELECT NULL::bigint AS event_position,
       l.id, l.consumer, l.instance, l.partition, l.position, l.position_to, l.event_id, l.event_type, l.attempts, l.error, l.reason,
       l.state, l.created_at, l.created_by, l.updated_at, l.updated_by
FROM inorder.dead_letters(state => NULL, max_rows => 1, after_id => $1::bigint - 1, to_id => $1::bigint) AS l
