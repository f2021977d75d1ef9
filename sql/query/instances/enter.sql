-- inorder instances/enter
-- Enters this process, or enters it again under a new epoch; removes processes that have been silent for an hour.
-- $1 uuid  id
-- $2 uuid  epoch
-- $3 text  host
-- $4 int   pid
-- $5 text  version
WITH silent AS (
    DELETE FROM inorder.instances
    WHERE heartbeat_at < clock_timestamp() - interval '1 hour' AND id <> $1::uuid
)
INSERT INTO inorder.instances (id, epoch, host, pid, version)
VALUES ($1::uuid, $2::uuid, $3::text, $4::int, $5::text)
ON CONFLICT ON CONSTRAINT instances_pkey
DO UPDATE SET epoch = excluded.epoch, heartbeat_at = clock_timestamp(), sleeping_until = NULL, session_lock = NULL
