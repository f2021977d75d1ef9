-- Is this process known to be gone? While it listens, its session holds an advisory lock; after a crash of the server nobody knows.
CREATE OR REPLACE FUNCTION inorder.is_gone(process uuid)
RETURNS boolean
LANGUAGE sql
VOLATILE
AS $body$
    SELECT coalesce((
        SELECT NOT EXISTS (
            SELECT FROM pg_catalog.pg_locks AS l
            WHERE l.locktype = 'advisory'
                AND l.database = (SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = current_database())
                AND l.classid = 'inorder.instances'::regclass
                AND l.objid::int = i.session_lock
                AND l.objsubid = 2
                AND l.granted
        )
        FROM inorder.instances AS i
        WHERE i.id = process AND i.session_lock IS NOT NULL
    ), false)
$body$;
