-- inorder consumers/refuse_end
-- Fails in a pass, in the place of a handler's statement that would end its transaction.
SELECT inorder.in_pass(NULL)
