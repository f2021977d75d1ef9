-- True in the transaction that the pass began; raises in any other, as then the handler has ended ours.
CREATE OR REPLACE FUNCTION inorder.in_pass(transaction_id text)
RETURNS boolean
LANGUAGE plpgsql
VOLATILE
AS $body$
BEGIN
    IF pg_current_xact_id_if_assigned()::text IS DISTINCT FROM transaction_id THEN
        RAISE EXCEPTION 'a handler must not end the transaction of its pass'
            USING ERRCODE = 'IO007', HINT = 'it ran COMMIT, ROLLBACK or the like: use a savepoint';
    END IF;
    RETURN true;
END
$body$;
