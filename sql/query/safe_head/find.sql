-- inorder safe_head/find
-- The safe head, as of now. A statement of its own: rows are read up to it in a later snapshot.
SELECT inorder.safe_head() AS head
