-- inorder verify/watchers
-- Ends one session of a consuming process that looks at the log and listens to the doorbell, picked at random.
-- $1 text  application_name: how it begins
SELECT pg_terminate_backend(pid) AS ended
FROM (
    SELECT pid
    FROM pg_catalog.pg_stat_activity
    WHERE starts_with(application_name, $1::text)
        AND datname = current_database()
        AND query ~ '^-- inorder (events/look|consumers/poll|instances/mark|safe_head)'
    ORDER BY random()
    LIMIT 1
) AS watcher
