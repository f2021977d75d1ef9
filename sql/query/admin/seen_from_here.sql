-- inorder admin/seen_from_here
-- What only who asks can compare with its own: the server's clock, and the version that the functions of the schema come from.
SELECT clock_timestamp() AS now, (SELECT m.library FROM inorder.migrations AS m WHERE m.version = 0) AS library
