-- Keeps prune away until the transaction ends (shared), or keeps away everybody who is about to need events that prune could
-- delete, and other prunes (exclusive).
CREATE OR REPLACE FUNCTION inorder.admin_hold_log(exclusive boolean)
RETURNS void
LANGUAGE plpgsql
VOLATILE
SET lock_timeout = '5s'
AS $body$
DECLARE
    holders text;
BEGIN
    IF exclusive THEN
        PERFORM FROM inorder.log_state FOR UPDATE;
    ELSE
        PERFORM FROM inorder.log_state FOR SHARE;
    END IF;
EXCEPTION WHEN lock_not_available THEN
    SELECT string_agg(inorder.admin_session(l.pid), ', ') INTO holders
    FROM inorder.log_state AS s
    JOIN pg_catalog.pg_locks AS l ON l.locktype = 'transactionid' AND l.transactionid = s.xmax AND l.granted;
    RAISE EXCEPTION 'the log is held by %', coalesce(holders, 'another session')
        USING ERRCODE = 'IO005', HINT = 'a prune, a registration or an operator''s action is under way; try again in a moment';
END
$body$;

-- How the log as a whole stands. A hole is the first id above the safe head, where somebody may still be writing below the head.
CREATE OR REPLACE FUNCTION inorder.log_progress()
RETURNS TABLE (head bigint, safe_head bigint, hole bigint, writers int, pruned_to bigint, pruned_types jsonb)
LANGUAGE plpgsql
VOLATILE
SET search_path = pg_catalog, pg_temp
AS $body$
#variable_conflict use_column
BEGIN
    safe_head := inorder.safe_head();
    SELECT greatest(safe_head, max(e.id)) INTO head FROM inorder.events AS e;
    hole := CASE WHEN head > safe_head THEN safe_head + 1 END;
    SELECT count(*)::int INTO writers FROM inorder.writers();
    SELECT s.pruned_to, s.pruned_types INTO pruned_to, pruned_types FROM inorder.log_state AS s;
    RETURN NEXT;
END
$body$;
