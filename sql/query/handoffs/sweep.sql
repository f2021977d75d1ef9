-- inorder handoffs/sweep
-- Deletes rows that are kept no longer, but none that the direct path still has to run; counts both.
-- $1 text    scope
-- $2 float8  seconds for which those of the direct path are kept
-- $3 float8  seconds for which those of deliveries are kept
-- $4 bigint  how many to delete at most
WITH old AS (
    SELECT h.scope, h.key
    FROM inorder.handoffs AS h
    WHERE h.scope = $1::text
        AND h.taken_at < statement_timestamp() - make_interval(secs => least($2::float8, $3::float8))
        AND (
            h.taken_by = 'delivery' AND h.taken_at < statement_timestamp() - make_interval(secs => $3::float8)
            OR h.ran_at IS NOT NULL AND h.taken_at < statement_timestamp() - make_interval(secs => $2::float8)
        )
    ORDER BY h.taken_at
    LIMIT $4::bigint
    FOR UPDATE SKIP LOCKED
), deleted AS (
    DELETE FROM inorder.handoffs AS h
    USING old AS o
    WHERE h.scope = o.scope AND h.key = o.key
    RETURNING h.key
)
SELECT (SELECT count(*) FROM deleted) AS deleted,
       (
           SELECT count(*)
           FROM inorder.handoffs AS h
           WHERE h.scope = $1::text AND h.taken_by = 'direct' AND h.ran_at IS NULL
       ) AS unfinished
