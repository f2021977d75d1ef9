-- inorder admin/handoff_forget
-- Forgets which side has an event.
-- $1 text     scope
-- $2 uuid     key
-- $3 text     by: NULL for the session's user
-- $4 text     why
-- $5 boolean  force: also what the direct path still has to run
SELECT id, at, by, action, coalesce(consumer, '') AS consumer, coalesce(instance, '') AS instance, coalesce(partition, 0) AS partition, why, before, after
FROM inorder.handoff_forget(scope => $1::text, key => $2::uuid, by => $3::text, why => $4::text, force => $5::boolean)
