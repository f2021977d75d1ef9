-- inorder verify/effects_left
-- What is still to be done: events that a consumer has not passed, and those of its queue.
SELECT coalesce(sum(left_over), 0)::bigint AS left_over
FROM (
    SELECT (SELECT count(*) FROM inorder.events AS e WHERE e.id > c.position) AS left_over
    FROM inorder.consumers AS c
    UNION ALL
    SELECT count(*) FROM inorder.ledger AS l WHERE l.status IN ('pending', 'in_progress')
) AS all_of_them
