-- inorder consumers/lease
-- Leases a state row that has something to do, for as long as handlers run outside of any transaction; no row where there is nothing
-- to do, or not for us. Every later write names the token. A holder whose session is gone is not waited for: what it was running
-- has a claim of its own.
-- $1 text    consumer
-- $2 text    instance
-- $3 int     partition
-- $4 uuid    process
-- $5 int     revision: ours
-- $6 bigint  head: the safe head
-- $7 float8  lease: seconds
UPDATE inorder.consumers AS c
SET lease_token = nextval('inorder.fencing'),
    lease_until = clock_timestamp() + make_interval(secs => $7::float8),
    owner = $4::uuid,
    seen_at = clock_timestamp()
FROM (
    SELECT lock_key
    FROM inorder.consumers
    WHERE name = $1::text AND instance = $2::text AND partition = $3::int
        AND revision <= $5::int
        AND position < $6::bigint
        AND (
            status = 'idle' AND (next_attempt_at IS NULL OR next_attempt_at <= clock_timestamp())
            OR status = 'dead' AND next_attempt_at <= clock_timestamp()
        )
        AND CASE
            WHEN lease_until IS NULL OR lease_until <= clock_timestamp() OR owner = $4::uuid THEN true
            ELSE inorder.is_gone(owner)
        END
    FOR NO KEY UPDATE SKIP LOCKED
) AS l
WHERE c.lock_key = l.lock_key
RETURNING c.lease_token
