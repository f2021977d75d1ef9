-- inorder safe_head/writers
-- Who could still fill a hole, what of our assumptions does not hold, and the epoch. One row without a writer when there is none.
-- $1 uuid  process: whose epoch
SELECT i.epoch, i.unsafe, w.virtualtransaction, w.pid
FROM (
    SELECT (SELECT epoch FROM inorder.instances WHERE id = $1::uuid) AS epoch, inorder.unsafe() AS unsafe
) AS i
LEFT JOIN inorder.writers() AS w ON true
