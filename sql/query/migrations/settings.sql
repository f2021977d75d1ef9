-- inorder migrations/settings
-- What holds for the transaction of a migration: bounded waits, and no name that is found by luck.
-- $1 text  lock_timeout, in milliseconds
-- $2 text  statement_timeout, in milliseconds; also how long a frozen migrator may hold its locks
SELECT set_config('lock_timeout', $1::text, true),
       set_config('statement_timeout', $2::text, true),
       set_config('idle_in_transaction_session_timeout', $2::text, true),
       set_config('search_path', 'pg_catalog', true),
       set_config('check_function_bodies', 'off', true)
