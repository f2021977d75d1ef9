-- The ledger forgets what was done long ago, a reset says whether effects may repeat, and dead letters are found by more.

-- Where the walk through the ledger, which looks for what is to be forgotten, goes on: a block of its table.
ALTER TABLE inorder.log_state ADD COLUMN ledger_block bigint NOT NULL DEFAULT 0;

-- They get more parameters.
DROP FUNCTION IF EXISTS inorder.reset(text, bigint, text, int, text, text, boolean, boolean);
DROP FUNCTION IF EXISTS inorder.reset(text, text, text, int, text, text, boolean, boolean);
DROP FUNCTION IF EXISTS inorder.dead_letters(text, text, int, bigint);
