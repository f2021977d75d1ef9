-- inorder verify/events
-- Every event of the log.
SELECT id, event_id
FROM inorder.events
ORDER BY id
