-- inorder session/check_constraints
-- Checks what was deferred to the end of the transaction; what comes after it has no time limit of the handlers.
SET CONSTRAINTS ALL IMMEDIATE;
SET LOCAL statement_timeout = 0
