-- inorder verify/suspects
-- Events that a consumer wanted and whose effects are not exactly one. In one snapshot, as effects and position commit
-- together: it can be asked at any time.
-- $1 bigint   above: only events above this id
-- $2 boolean  passed: of events without an effect, only those that the position has passed
SELECT l.lane, e.id, e.event_id, e.event_type, count(f.lane) AS effects,
       bool_or(coalesce(e.id <= c.position, false)) AS passed
FROM inorder.verify_lanes AS l
JOIN inorder.events AS e
    ON (l.event_types IS NULL OR e.event_type = ANY (l.event_types))
    AND (l.partitions = 1 OR (e.stream_hash & 2147483647) % l.partitions = l.partition)
LEFT JOIN inorder.consumers AS c
    ON c.name = l.name AND c.instance = l.instance AND c.partition = l.partition
LEFT JOIN inorder.verify_effects AS f
    ON f.lane = l.lane AND f.id = e.id AND f.event_id = e.event_id
WHERE e.id > $1::bigint
GROUP BY l.lane, e.id, e.event_id, e.event_type
HAVING count(f.lane) > 1 OR (count(f.lane) = 0 AND (NOT $2::boolean OR bool_or(coalesce(e.id <= c.position, false))))
ORDER BY e.id, l.lane
