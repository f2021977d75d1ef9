-- inorder admin/part_end
-- Where a part of the log ends that has so many events; no row where there are fewer.
-- $1 bigint  after: above this id
-- $2 bigint  to: up to this id
-- $3 bigint  events
SELECT id
FROM inorder.events
WHERE id > $1::bigint AND id <= $2::bigint
ORDER BY id
OFFSET $3::bigint - 1
LIMIT 1
