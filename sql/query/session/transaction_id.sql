-- inorder session/transaction_id
-- The name of the transaction, which it gets by being asked.
SELECT pg_current_xact_id()::text AS transaction_id
