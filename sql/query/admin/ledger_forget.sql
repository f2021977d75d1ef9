-- inorder admin/ledger_forget
-- Forgets a row of the ledger.
-- $1 uuid  key
-- $2 text  handler
-- $3 text  by: NULL for the session's user
-- $4 text  why
SELECT id, at, by, action, consumer, instance, coalesce(partition, 0) AS partition, why, before, after
FROM inorder.ledger_forget(key => $1::uuid, handler => $2::text, by => $3::text, why => $4::text)
