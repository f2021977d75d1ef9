-- inorder instances/be_present
-- Holds this process's lock for as long as the session lives, so that others know when it is gone. Shared: a session before this one
-- may still hold it.
-- $1 uuid  id
WITH held AS (
    SELECT hashtext($1::uuid::text) AS session_lock,
           pg_advisory_lock_shared('inorder.instances'::regclass::oid::int, hashtext($1::uuid::text))::text AS locked
)
UPDATE inorder.instances AS i
SET session_lock = held.session_lock
FROM held
WHERE i.id = $1::uuid AND held.locked IS NOT NULL
