-- inorder session/roll_back
-- Ends a transaction; nothing is kept.
ROLLBACK
