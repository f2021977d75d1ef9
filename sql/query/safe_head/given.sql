-- inorder safe_head/given
-- The last id that was given, the highest one that is visible, and the epoch. Those between are being written, or were rolled
-- back.
-- $1 uuid  process: whose epoch
SELECT (SELECT last_value FROM inorder.events_id_seq) AS last,
       coalesce((SELECT id FROM inorder.events ORDER BY id DESC LIMIT 1), 0) AS visible,
       (SELECT epoch FROM inorder.instances WHERE id = $1::uuid) AS epoch
