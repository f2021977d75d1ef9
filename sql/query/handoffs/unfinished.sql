-- inorder handoffs/unfinished
-- Events that the direct path took and has not run, oldest first. Those of a time that is still to come count: the clock was set back.
-- $1 text    scope
-- $2 float8  seconds since it took them, at least
-- $3 bigint  how many at most
SELECT h.key
FROM inorder.handoffs AS h
WHERE h.scope = $1::text
    AND h.taken_by = 'direct'
    AND h.ran_at IS NULL
    AND (
        h.taken_at <= statement_timestamp() - make_interval(secs => $2::float8)
        OR h.taken_at > statement_timestamp() + interval '1 minute'
    )
ORDER BY h.taken_at
LIMIT $3::bigint
