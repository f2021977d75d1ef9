-- inorder consumers/stand
-- How a state row stands, whole: one that could not be locked, or was, and something is special about it. Nothing is locked.
-- $1 text    consumer
-- $2 text    instance
-- $3 int     partition
-- $4 uuid    process: whose epoch
SELECT c.position, c.status, c.attempts, c.faults, c.rearms, c.revision, c.failed_event_id, c.last_error,
       (SELECT e.id FROM inorder.events AS e WHERE e.event_id = c.failed_event_id) AS failed_at,
       c.next_attempt_at, (extract(epoch FROM c.next_attempt_at) - extract(epoch FROM clock_timestamp()))::float8 AS due_in,
       lower(p.missing) AS pruned_from, upper(p.missing) - 1 AS pruned_to,
       (
           SELECT min(d.id)
           FROM inorder.dead_letters AS d
           WHERE d.consumer = $1::text AND d.instance = $2::text AND d.partition = $3::int AND d.state = 'retry_requested'
       ) AS retry,
       (SELECT epoch FROM inorder.instances WHERE id = $4::uuid) AS epoch
FROM inorder.consumers AS c
CROSS JOIN LATERAL (SELECT inorder.pruned_unread(c.position, c.accepted_to, c.event_types) AS missing) AS p
WHERE c.name = $1::text AND c.instance = $2::text AND c.partition = $3::int
