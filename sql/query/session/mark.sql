-- inorder session/mark
-- What our session was given at its start. A pooler starts its sessions itself: there it is missing, or another's.
SELECT current_setting('inorder.session', true) AS mark
