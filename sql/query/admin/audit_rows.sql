-- inorder admin/audit_rows
-- What operators did, newest first. NULL fits every row.
-- $1 text    consumer
-- $2 text    instance
-- $3 text    action
-- $4 text    done_by
-- $5 int     max_rows
-- $6 bigint  before_id: the last of the part before; NULL for the first part
SELECT id, at, by, db_user, action, consumer, instance, partition, why, before, after
FROM inorder.audit_rows(
    of_consumer => $1::text, of_instance => $2::text, of_action => $3::text, done_by => $4::text, max_rows => $5::int, before_id => $6::bigint
)
