-- inorder session/commit
-- Ends a transaction; everything is kept.
COMMIT
