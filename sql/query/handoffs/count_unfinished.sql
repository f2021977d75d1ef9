-- inorder handoffs/count_unfinished
-- How many events the direct path took and has not run, by scope, with the age of the oldest; counted up to 10,000.
SELECT r.scope, count(*) AS unfinished,
       greatest(0, extract(epoch FROM clock_timestamp() - min(r.taken_at)))::float8 AS oldest
FROM (
    SELECT h.scope, h.taken_at
    FROM inorder.handoffs AS h
    WHERE h.taken_by = 'direct' AND h.ran_at IS NULL
    LIMIT 10000
) AS r
GROUP BY r.scope
ORDER BY r.scope
