-- inorder verify/cut
-- Ends one session of a consuming process, picked at random.
-- $1 text  application_name: how it begins
SELECT pg_terminate_backend(pid) AS ended
FROM (
    SELECT pid
    FROM pg_catalog.pg_stat_activity
    WHERE starts_with(application_name, $1::text)
        AND datname = current_database()
    ORDER BY random()
    LIMIT 1
) AS session
