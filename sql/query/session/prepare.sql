-- inorder session/prepare
-- What every session of ours relies on: it sees every row or fails, notices a client that is gone, and reads what is committed.
SET row_security = off;
SET default_transaction_isolation = 'read committed';
SET default_transaction_read_only = off;
SET client_connection_check_interval = '500ms';
SET tcp_user_timeout = '10s';
SET tcp_keepalives_idle = 10;
SET tcp_keepalives_interval = 3;
SET tcp_keepalives_count = 3;
