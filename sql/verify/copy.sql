-- inorder verify/copy
-- A COPY into the log.
COPY inorder.events (event_id, event_type, payload) FROM STDIN
