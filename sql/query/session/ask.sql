-- inorder session/ask
-- Does the session answer, and can its transaction go on?
SELECT 1
