-- inorder verify/waits
-- What the sessions of this database wait for, in words.
SELECT format('%s %s, %s', count(*), coalesce(a.state, 'hidden'), coalesce(a.wait_event_type || ' ' || a.wait_event, 'waits for nothing')) AS waits
FROM pg_catalog.pg_stat_activity AS a
WHERE a.datname = current_database() AND a.pid <> pg_backend_pid()
GROUP BY a.state, a.wait_event_type, a.wait_event
ORDER BY count(*) DESC
