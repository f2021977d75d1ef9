-- inorder safe_head/begin
-- A safe head to begin with, and the epoch that it holds in.
-- $1 uuid  process: whose epoch
SELECT inorder.safe_head() AS head, (SELECT epoch FROM inorder.instances WHERE id = $1::uuid) AS epoch
