-- inorder handoffs/sweep
-- Deletes rows of a scope that are kept no longer, as its programs have it; counts them, and what the direct path still has to run.
-- $1 text  scope
-- $2 int   how many to delete at most
SELECT inorder.handoffs_sweep(of_scope => $1::text, older_than => NULL, max_rows => $2::int) AS deleted,
       u.unfinished,
       coalesce(extract(epoch FROM clock_timestamp() - u.oldest), 0)::float8 AS oldest_unfinished
FROM (
    SELECT count(*) AS unfinished, min(h.taken_at) AS oldest
    FROM inorder.handoffs AS h
    WHERE h.scope = $1::text AND h.taken_by = 'direct' AND h.ran_at IS NULL
) AS u
