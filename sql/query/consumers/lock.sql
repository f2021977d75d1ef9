-- inorder consumers/lock
-- Locks a state row that has something to do; no row where there is nothing to do, or not for us: then nothing is locked, and
-- nothing written. The advisory lock makes the holder's pid visible. As little as possible: an event waits for it.
-- $1 text    consumer
-- $2 text    instance
-- $3 int     partition
-- $4 uuid    process: whose epoch
-- $5 int     revision: ours
-- $6 bigint  head: the safe head
SELECT pg_current_xact_id()::text AS transaction_id,
       pg_advisory_xact_lock('inorder.consumers'::regclass::oid::int, l.lock_key)::text AS advisory,
       pg_backend_pid() AS backend,
       (SELECT epoch FROM inorder.instances WHERE id = $4::uuid) AS epoch,
       l.position, l.revision, l.written_by
FROM (
    SELECT lock_key, position, revision, xmin::text AS written_by
    FROM inorder.consumers
    WHERE name = $1::text AND instance = $2::text AND partition = $3::int
        AND revision <= $5::int
        AND position < $6::bigint
        AND (
            status = 'idle' AND (next_attempt_at IS NULL OR next_attempt_at <= clock_timestamp())
            OR status = 'dead' AND next_attempt_at <= clock_timestamp()
        )
    FOR NO KEY UPDATE SKIP LOCKED
) AS l
