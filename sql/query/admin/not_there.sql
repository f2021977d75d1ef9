-- inorder admin/not_there
-- Which of these events are not in the log.
-- $1 uuid[]  event_ids
SELECT DISTINCT k.event_id
FROM unnest($1::uuid[]) AS k (event_id)
WHERE NOT EXISTS (SELECT FROM inorder.events AS e WHERE e.event_id = k.event_id)
