-- inorder admin/list_instances
-- The processes that are entered, and what each runs.
-- $1 int  max_rows
SELECT id, host, pid, version, state, started_at, heartbeat_at, heartbeat_age, sleeping_until, consumers
FROM inorder.list_instances(max_rows => $1::int)
