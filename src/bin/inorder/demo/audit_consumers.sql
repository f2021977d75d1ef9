-- What each consumer was given, beside what the log holds.
WITH delivery AS (
    SELECT consumer, id, lag(id) OVER (PARTITION BY consumer ORDER BY n) AS before
    FROM shop.deliveries
), delivered AS (
    SELECT consumer, count(*) AS all_of_them, count(DISTINCT id) AS different, count(*) FILTER (WHERE id < before) AS backwards
    FROM delivery
    GROUP BY consumer
), passed_over AS (
    SELECT consumer, position AS id
    FROM inorder.dead_letters
), missed AS (
    SELECT c.name AS consumer, count(*) AS events
    FROM inorder.consumers AS c
    CROSS JOIN inorder.events AS e
    WHERE NOT EXISTS (SELECT FROM delivery AS d WHERE d.consumer = c.name AND d.id = e.id)
        AND NOT EXISTS (SELECT FROM passed_over AS p WHERE p.consumer = c.name AND p.id = e.id)
    GROUP BY c.name
), unknown AS (
    SELECT d.consumer, count(*) AS events
    FROM delivery AS d
    WHERE NOT EXISTS (SELECT FROM inorder.events AS e WHERE e.id = d.id)
    GROUP BY d.consumer
)
SELECT c.name,
    coalesce(d.all_of_them, 0) AS delivered,
    coalesce(m.events, 0) AS missed,
    coalesce(d.backwards, 0) AS out_of_order,
    coalesce(d.all_of_them - d.different, 0) + coalesce(u.events, 0) AS too_many,
    (SELECT count(*) FROM passed_over AS p WHERE p.consumer = c.name) AS skipped
FROM inorder.consumers AS c
LEFT JOIN delivered AS d ON d.consumer = c.name
LEFT JOIN missed AS m ON m.consumer = c.name
LEFT JOIN unknown AS u ON u.consumer = c.name
ORDER BY c.name
