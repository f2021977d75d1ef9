-- inorder session/is_standby
-- Does the server stand by for another?
SELECT pg_catalog.pg_is_in_recovery() AS is_standby
