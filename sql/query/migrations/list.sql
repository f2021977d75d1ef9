-- inorder migrations/list
-- What was applied, in the order of versions; version 0 is the bundle of functions.
SELECT version, name, checksum, library, structure
FROM inorder.migrations
ORDER BY version
