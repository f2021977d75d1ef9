-- inorder consumers/expire
-- Expires the rows of instances that nobody has run for long: they no longer hold back retention. Audited.
-- $1 float8  after: seconds
WITH unseen AS (
    SELECT name, instance, partition, status
    FROM inorder.consumers
    WHERE instance <> '' AND status IN ('idle', 'dead') AND seen_at < clock_timestamp() - make_interval(secs => $1::float8)
    FOR NO KEY UPDATE SKIP LOCKED
),
expired AS (
    UPDATE inorder.consumers AS c
    SET status = 'expired', updated_at = clock_timestamp()
    FROM unseen AS u
    WHERE c.name = u.name AND c.instance = u.instance AND c.partition = u.partition
    RETURNING c.name, c.instance, c.partition, c.position, c.seen_at, u.status
)
INSERT INTO inorder.audit (by, action, consumer, instance, partition, why, before, after)
SELECT 'inorder', 'expire', name, instance, partition, format('not seen since %s', seen_at),
       jsonb_build_object('status', status, 'position', position), jsonb_build_object('status', 'expired', 'position', position)
FROM expired
RETURNING consumer, instance, partition
