-- Append-only, enforced in the database: nothing changes an event, and only prune deletes one.
CREATE OR REPLACE FUNCTION inorder.refuse_change() RETURNS trigger
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $body$
BEGIN
    IF TG_OP = 'DELETE' AND EXISTS (
        SELECT FROM inorder.log_state WHERE pruning = pg_catalog.pg_current_xact_id_if_assigned()
    ) THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION '% of "%"."%" refused: the log is append-only', TG_OP, TG_TABLE_SCHEMA, TG_TABLE_NAME
        USING ERRCODE = 'IO001', HINT = 'to delete old events, call prune()';
END
$body$;

CREATE OR REPLACE TRIGGER events_append_only
    BEFORE UPDATE OR DELETE OR TRUNCATE ON inorder.events
    FOR EACH STATEMENT EXECUTE FUNCTION inorder.refuse_change();
-- Also in a session that replays as a replica.
ALTER TABLE inorder.events ENABLE ALWAYS TRIGGER events_append_only;
