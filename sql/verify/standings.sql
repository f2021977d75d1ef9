-- inorder verify/standings
-- How far every consumer is, beside the highest id.
SELECT l.lane, coalesce(c.position, 0) AS position, coalesce(c.status, 'unregistered') AS status, c.last_error,
       (SELECT coalesce(max(id), 0) FROM inorder.events) AS top
FROM inorder.verify_lanes AS l
LEFT JOIN inorder.consumers AS c
    ON c.name = l.name AND c.instance = l.instance AND c.partition = l.partition
ORDER BY l.lane
