-- inorder consumers/poll
-- How the log and every registered consumer stand, in one statement. One row without a consumer when there is none.
-- $1 uuid  instance: whose epoch
SELECT h.epoch, h.top, c.name, c.instance, c.partition, c.position, c.status, c.revision, c.attempts, c.faults,
       extract(epoch FROM c.next_attempt_at - clock_timestamp())::float8 AS due_in,
       CASE WHEN c.position < h.top THEN (
           SELECT greatest(0, extract(epoch FROM clock_timestamp() - e.recorded_at))::float8
           FROM inorder.events AS e
           WHERE e.id > c.position
           ORDER BY e.id
           LIMIT 1
       ) END AS behind,
       EXISTS (
           SELECT FROM inorder.dead_letters AS d
           WHERE d.consumer = c.name AND d.instance = c.instance AND d.partition = c.partition AND d.state = 'retry_requested'
       ) AS retry
FROM (
    SELECT (SELECT epoch FROM inorder.instances WHERE id = $1::uuid) AS epoch,
           coalesce((SELECT max(id) FROM inorder.events), 0) AS top
) AS h
LEFT JOIN inorder.consumers AS c ON true
ORDER BY c.name, c.instance, c.partition
