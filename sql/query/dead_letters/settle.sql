-- inorder dead_letters/settle
-- Writes what the retry of a dead letter came to.
-- $1 bigint  id
-- $2 text    state
-- $3 text    error: NULL leaves the last one
UPDATE inorder.dead_letters
SET state = $2::text,
    attempts = attempts + 1,
    error = coalesce($3::text, error),
    updated_at = clock_timestamp(),
    updated_by = 'inorder'
WHERE id = $1::bigint AND state = 'retry_requested'
