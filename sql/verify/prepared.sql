-- inorder verify/prepared
-- Our prepared transactions that are still open.
-- $1 text  prefix
SELECT gid
FROM pg_catalog.pg_prepared_xacts
WHERE starts_with(gid, $1::text) AND database = current_database()
