-- inorder safe_head/unsafe
-- What of our assumptions does not hold. Reads nothing that a standby cannot read.
SELECT inorder.unsafe() AS unsafe
