-- inorder consumers/poll
-- How the log and every registered consumer stand, what the safe head rests on and does not hold, and whether appends ring, in
-- one statement. One row without a consumer when there is none. Times are subtracted as numbers: a bare INSERT may have written an
-- endless one.
-- $1 uuid  process: whose epoch
SELECT h.epoch, h.top, h.unsafe, h.rings, c.name, c.instance, c.partition, c.position, c.status, c.revision, c.attempts, c.faults,
       (extract(epoch FROM c.next_attempt_at) - extract(epoch FROM clock_timestamp()))::float8 AS due_in,
       CASE WHEN c.position < h.top THEN (
           SELECT greatest(0, extract(epoch FROM clock_timestamp()) - extract(epoch FROM e.recorded_at))::float8
           FROM inorder.events AS e
           WHERE e.id > c.position
           ORDER BY e.id
           LIMIT 1
       ) END AS behind,
       EXISTS (
           SELECT FROM inorder.dead_letters AS d
           WHERE d.consumer = c.name AND d.instance = c.instance AND d.partition = c.partition AND d.state = 'retry_requested'
       ) AS retry,
       -- Thousands are as alarming as millions, and counting those would take its time each second.
       (
           SELECT count(*)
           FROM (
               SELECT FROM inorder.dead_letters AS d
               WHERE d.consumer = c.name AND d.instance = c.instance AND d.partition = c.partition
                   AND d.state IN ('open', 'retry_requested')
               LIMIT 1000
           ) AS open
       ) AS open_letters,
       q.pending, q.in_progress, q.due_for
FROM (
    SELECT (SELECT epoch FROM inorder.instances WHERE id = $1::uuid) AS epoch,
           coalesce((SELECT id FROM inorder.events ORDER BY id DESC LIMIT 1), 0) AS top,
           inorder.unsafe() AS unsafe,
           inorder.rings() AS rings
) AS h
LEFT JOIN inorder.consumers AS c ON true
LEFT JOIN LATERAL (
    SELECT count(*) FILTER (WHERE r.status = 'pending') AS pending,
           count(*) FILTER (WHERE r.status = 'in_progress') AS in_progress,
           -- Of the row that was due first; negative until then.
           (extract(epoch FROM clock_timestamp()) - extract(epoch FROM min(r.due_at)))::float8 AS due_for
    FROM (
        SELECT l.status, coalesce(l.lease_until, l.next_attempt_at, l.created_at) AS due_at
        FROM inorder.ledger AS l
        WHERE l.handler = inorder.ledger_handler(c.name, c.instance)
            AND l.status IN ('pending', 'in_progress')
        ORDER BY coalesce(l.lease_until, l.next_attempt_at, l.created_at)
        LIMIT 10000
    ) AS r
) AS q ON c.kind = 'queued' AND c.partition = 0
ORDER BY c.name, c.instance, c.partition
