-- inorder safe_head/top
-- The highest id, be it pruned, and the epoch.
-- $1 uuid  process: whose epoch
SELECT coalesce(greatest(inorder.settled(), (SELECT max(id) FROM inorder.events)), 0) AS top,
       (SELECT epoch FROM inorder.instances WHERE id = $1::uuid) AS epoch
