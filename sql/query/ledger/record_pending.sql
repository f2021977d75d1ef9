-- inorder ledger/record_pending
-- Records that a queued consumer is to handle events, in the transaction that appended them.
-- $1 text     consumer
-- $2 bigint[] ids
SELECT recorded, handlers, refusal
FROM inorder.record_pending($1::text, $2::bigint[])
