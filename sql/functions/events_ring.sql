-- Do appends ring? Not by default on a server that allows prepared transactions (one that has notified cannot be prepared), unless
-- `inorder.ring` says `on`.
CREATE OR REPLACE FUNCTION inorder.rings()
RETURNS boolean
LANGUAGE sql
STABLE
AS $body$
    SELECT CASE coalesce(pg_catalog.current_setting('inorder.ring', true), '')
        WHEN 'off' THEN false
        WHEN 'on' THEN true
        ELSE pg_catalog.current_setting('max_prepared_transactions')::int = 0
    END
$body$;

-- The doorbell: an append notifies only while a process sleeps. A NOTIFY in every transaction would serialise commits.
-- SECURITY DEFINER: a producer needs no right on the table of processes.
CREATE OR REPLACE FUNCTION inorder.ring() RETURNS trigger
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $body$
BEGIN
    IF EXISTS (SELECT FROM inorder.instances WHERE sleeping_until > pg_catalog.clock_timestamp())
        AND inorder.rings()
    THEN
        PERFORM pg_catalog.pg_notify('inorder_' || pg_catalog.md5(TG_TABLE_SCHEMA), '');
    END IF;
    RETURN NULL;
END
$body$;

CREATE OR REPLACE TRIGGER events_ring
    AFTER INSERT ON inorder.events
    FOR EACH STATEMENT EXECUTE FUNCTION inorder.ring();
