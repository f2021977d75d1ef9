-- inorder session/begin
-- Begins a transaction that sees what is committed, whatever the session's default is.
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE
