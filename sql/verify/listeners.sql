-- inorder verify/listeners
-- Ends one session that listens to the doorbell, picked at random.
-- $1 text  schema
SELECT pg_terminate_backend(pid) AS ended
FROM (
    SELECT pid
    FROM pg_catalog.pg_stat_activity
    WHERE query LIKE 'LISTEN inorder\_' || md5($1::text) || '%'
        AND state = 'idle'
        AND datname = current_database()
    ORDER BY random()
    LIMIT 1
) AS listener
