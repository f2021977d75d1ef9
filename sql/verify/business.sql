-- inorder verify/business
-- Business data of a writer.
-- $1 int     writer
-- $2 bigint  n
INSERT INTO inorder.verify_business (writer, n)
VALUES ($1::int, $2::bigint)
