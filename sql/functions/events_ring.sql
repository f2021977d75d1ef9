-- Do appends ring? Not by default on a server that allows prepared transactions (one that has notified cannot be prepared), unless
-- `inorder.ring` says `on`.
CREATE OR REPLACE FUNCTION inorder.rings()
RETURNS boolean
LANGUAGE sql
STABLE
AS $body$
    SELECT CASE
        WHEN pg_catalog.current_setting('inorder.ring', true) OPERATOR(pg_catalog.=) 'off' THEN false
        WHEN pg_catalog.current_setting('inorder.ring', true) OPERATOR(pg_catalog.=) 'on' THEN true
        ELSE pg_catalog.current_setting('max_prepared_transactions') OPERATOR(pg_catalog.=) '0'
    END
$body$;

-- The doorbell: an append notifies only while a process sleeps. A NOTIFY in every transaction would serialise commits.
-- SECURITY DEFINER: a producer needs no right on the table of processes. Every name is qualified, the operator too, so that
-- nobody's search path matters; setting it for the call would cost every append more than the look itself.
CREATE OR REPLACE FUNCTION inorder.ring() RETURNS trigger
LANGUAGE plpgsql
SECURITY DEFINER
AS $body$
BEGIN
    PERFORM FROM inorder.instances WHERE sleeping_until OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp();
    IF FOUND THEN
        PERFORM pg_catalog.pg_notify(pg_catalog.concat('inorder_', pg_catalog.md5(TG_TABLE_SCHEMA)), '') WHERE inorder.rings();
    END IF;
    RETURN NULL;
END
$body$;

CREATE OR REPLACE TRIGGER events_ring
    AFTER INSERT ON inorder.events
    FOR EACH STATEMENT EXECUTE FUNCTION inorder.ring();
