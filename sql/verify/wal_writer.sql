-- inorder verify/wal_writer
-- The process that brings asynchronous commits to the disk.
SELECT pid
FROM pg_catalog.pg_stat_activity
WHERE backend_type = 'walwriter'
