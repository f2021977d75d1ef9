-- inorder session/back_to_guard
-- Undoes what the handlers of a pass did.
ROLLBACK TO SAVEPOINT inorder_pass
