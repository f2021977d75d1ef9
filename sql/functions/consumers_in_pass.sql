-- True in the transaction that the pass began; raises in any other, as then the handler has ended ours.
CREATE OR REPLACE FUNCTION inorder.in_pass(transaction_id text)
RETURNS boolean
LANGUAGE plpgsql
VOLATILE
AS $body$
BEGIN
    IF pg_current_xact_id_if_assigned()::text IS DISTINCT FROM transaction_id THEN
        RAISE EXCEPTION 'the handler ended the transaction of its pass'
            USING ERRCODE = 'IO007', HINT = 'a handler must not run COMMIT or ROLLBACK; use a savepoint';
    END IF;
    RETURN true;
END
$body$;
