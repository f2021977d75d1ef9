-- inorder session/look
-- Begins a transaction that only looks, finds rows by their keys whatever the tables are thought to hold, and compiles nothing.
BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY;
SET LOCAL enable_seqscan = off;
SET LOCAL jit = off
