-- inorder consumers/record
-- Records a failure after the pass's own transaction was lost. Fenced: 0 rows when anybody has moved on since.
-- $1  text    consumer
-- $2  text    instance
-- $3  int     partition
-- $4  bigint  position: as it was at the lock, as the next two
-- $5  int     attempts
-- $6  int     faults
-- $7  text    status: to be written, as the rest
-- $8  int     attempts
-- $9  int     faults
-- $10 float8  due_in: seconds until the next attempt
-- $11 uuid    failed_event_id
-- $12 text    last_error
UPDATE inorder.consumers
SET status = $7::text,
    attempts = $8::int,
    faults = $9::int,
    next_attempt_at = clock_timestamp() + make_interval(secs => $10::float8),
    failed_event_id = $11::uuid,
    last_error = $12::text,
    last_error_at = clock_timestamp(),
    failed = failed + 1,
    updated_at = clock_timestamp()
WHERE name = $1::text AND instance = $2::text AND partition = $3::int
    AND position = $4::bigint AND attempts = $5::int AND faults = $6::int
    AND status IN ('idle', 'dead')
RETURNING next_attempt_at
