-- inorder admin/create_roles
-- Makes the missing ones of the four roles, and gives each its rights.
SELECT role, created
FROM inorder.create_roles()
