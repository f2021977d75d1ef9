-- inorder instances/mark
-- Says that this process lives and, while it sleeps, that appends are to ring for it. 0 rows: the process is not entered.
-- $1 uuid     id
-- $2 boolean  asleep
UPDATE inorder.instances
SET heartbeat_at = clock_timestamp(),
    sleeping_until = CASE WHEN $2::boolean THEN clock_timestamp() + interval '60 seconds' END
WHERE id = $1::uuid
RETURNING epoch
