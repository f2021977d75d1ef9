-- inorder consumers/settle
-- Writes what a pass came to, in the pass's own transaction: it commits together with the handlers' effects or not at all.
-- 0 rows: the row is gone. An error: the handler ended our transaction.
-- $1  text    consumer
-- $2  text    instance
-- $3  int     partition
-- $4  text    transaction_id: taken at the lock
-- $5  bigint  position
-- $6  text    status
-- $7  int     attempts
-- $8  int     faults
-- $9  int     rearms
-- $10 float8  due_in: seconds until the next attempt; NULL for at once, or never where the status says so
-- $11 uuid    failed_event_id
-- $12 text    last_error
-- $13 bigint  processed: to be added, as the next two
-- $14 bigint  failed
-- $15 bigint  skipped
-- $16 uuid    owner: this process
UPDATE inorder.consumers
SET position = $5::bigint,
    status = $6::text,
    attempts = $7::int,
    faults = $8::int,
    rearms = $9::int,
    next_attempt_at = clock_timestamp() + make_interval(secs => $10::float8),
    failed_event_id = $11::uuid,
    last_error = $12::text,
    last_error_at = CASE WHEN $14::bigint > 0 THEN clock_timestamp() ELSE last_error_at END,
    processed = processed + $13::bigint,
    failed = failed + $14::bigint,
    skipped = skipped + $15::bigint,
    owner = $16::uuid,
    seen_at = clock_timestamp(),
    updated_at = clock_timestamp()
WHERE name = $1::text AND instance = $2::text AND partition = $3::int
    AND inorder.in_pass($4::text)
RETURNING next_attempt_at, xmin::text AS written_by
