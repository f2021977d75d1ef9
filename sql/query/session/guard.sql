-- inorder session/guard
-- Marks where the handlers' part of a pass begins: what they did is undone back to here, and the row stays locked.
SAVEPOINT inorder_pass
