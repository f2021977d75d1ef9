-- inorder verify/effects_idle
-- Sessions of the consuming processes that sit in a transaction, for the longest of these. A process that is starting registers its
-- consumers in one, of a few statements; that is not meant.
-- $1 text  application_name: how it begins
SELECT count(*) AS sessions, coalesce(max(extract(epoch FROM clock_timestamp() - state_change)), 0)::float8 AS longest,
       min(left(query, 60)) AS example
FROM pg_catalog.pg_stat_activity
WHERE starts_with(application_name, $1::text) AND datname = current_database() AND state LIKE 'idle in transaction%'
    AND query NOT LIKE '-- inorder consumers/register%' AND query NOT LIKE 'START TRANSACTION%'
