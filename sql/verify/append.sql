-- inorder verify/append
-- An append through the SQL function.
-- $1 text  event_type
-- $2 text  payload
-- $3 uuid  event_id
-- $4 text  stream_type
-- $5 text  stream_id
SELECT outcome, id
FROM inorder.append(
    $1::text, $2::text::json, event_id => $3::uuid, stream_type => $4::text, stream_id => $5::text)
