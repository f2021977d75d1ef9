-- inorder admin/roles
-- The four roles of the schema: which are there, what they lack, and who has them.
SELECT kind, role, is_there, lacking, members
FROM inorder.roles()
