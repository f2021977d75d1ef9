-- inorder instances/leave
-- Takes this process out.
-- $1 uuid  id
DELETE FROM inorder.instances
WHERE id = $1::uuid
