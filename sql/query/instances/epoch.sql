-- inorder instances/epoch
-- The epoch of a process, as the server behind this session knows it; no row when the process is not entered.
-- $1 uuid  id
SELECT epoch
FROM inorder.instances
WHERE id = $1::uuid
