-- inorder consumers/expire
-- Expires the rows of instances that nobody has run for long: they no longer hold back retention. Audited.
-- $1 float8  after: seconds
WITH expired AS (
    UPDATE inorder.consumers
    SET status = 'expired', updated_at = clock_timestamp()
    WHERE instance <> '' AND status = 'idle' AND seen_at < clock_timestamp() - make_interval(secs => $1::float8)
    RETURNING name, instance, partition, position, seen_at
)
INSERT INTO inorder.audit (by, action, consumer, instance, partition, why, before, after)
SELECT 'inorder', 'expire', name, instance, partition, format('not seen since %s', seen_at),
       jsonb_build_object('status', 'idle', 'position', position), jsonb_build_object('status', 'expired', 'position', position)
FROM expired
RETURNING consumer, instance, partition
