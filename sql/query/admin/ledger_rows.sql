-- inorder admin/ledger_rows
-- Rows of the ledger.
-- $1 uuid  key: NULL for every key
-- $2 text  handler: NULL for every handler
-- $3 text  status: NULL for every status
-- $4 int   max_rows
-- $5 uuid  after_key: the last of the part before; NULL for the first part
-- $6 text  after_handler
SELECT event_id, handler, status, attempts, faults, next_attempt_at, lease_until, token, position, event_type, stream,
       owner, owner_host, owner_pid, owner_gone, last_error, created_at, updated_at
FROM inorder.ledger_rows(
    key => $1::uuid, of_handler => $2::text, in_status => $3::text, max_rows => $4::int, after_key => $5::uuid, after_handler => $6::text
)
