-- inorder admin/ledger_release
-- Takes a claim back whose holder is gone.
-- $1 uuid     key
-- $2 text     handler
-- $3 text     by: NULL for the session's user
-- $4 text     why
-- $5 boolean  force: also of a holder that is not known to be gone
SELECT id, at, by, action, consumer, instance, coalesce(partition, 0) AS partition, why, before, after
FROM inorder.ledger_release(key => $1::uuid, handler => $2::text, by => $3::text, why => $4::text, force => $5::boolean)
