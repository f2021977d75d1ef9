-- inorder ledger/count_unfinished
-- How much in the ledger is unfinished, by handler and status. Thousands are as alarming as millions, and counting those would take
-- its time at each scrape.
SELECT r.handler, r.status, count(*) AS entries
FROM (
    SELECT l.handler, l.status
    FROM inorder.ledger AS l
    WHERE l.status IN ('pending', 'in_progress')
    LIMIT 10000
) AS r
GROUP BY r.handler, r.status
ORDER BY r.handler, r.status
