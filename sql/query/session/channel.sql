-- inorder session/channel
-- The doorbell's channel; a hash, as a channel's name has 63 bytes and a schema's may have as many.
-- $1 text  schema
SELECT 'inorder_' || md5($1::text) AS channel
