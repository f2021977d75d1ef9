-- inorder verify/strangers
-- Effects of events that are not in the log, or that the consumer does not want.
SELECT f.lane, f.id, f.event_id
FROM inorder.verify_effects AS f
LEFT JOIN inorder.verify_lanes AS l ON l.lane = f.lane
LEFT JOIN inorder.events AS e
    ON e.id = f.id AND e.event_id = f.event_id
    AND (l.event_types IS NULL OR e.event_type = ANY (l.event_types))
    AND (l.partitions = 1 OR (e.stream_hash & 2147483647) % l.partitions = l.partition)
WHERE e.id IS NULL
ORDER BY f.lane, f.id
