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

-- Keeps the sequence `doorbell` at the latest mark of all processes. One at a time: who comes later sees the marks of those
-- before, so that nobody takes away what another has set.
CREATE OR REPLACE FUNCTION inorder.set_doorbell() RETURNS trigger
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $body$
BEGIN
    PERFORM pg_advisory_xact_lock('inorder.instances'::regclass::oid::int, 0);
    PERFORM setval('inorder.doorbell', coalesce(max(ceil(date_part('epoch', sleeping_until)))::bigint, 1))
    FROM inorder.instances;
    RETURN NULL;
END
$body$;

CREATE OR REPLACE TRIGGER instances_set_doorbell
    AFTER INSERT OR UPDATE OR DELETE ON inorder.instances
    FOR EACH STATEMENT EXECUTE FUNCTION inorder.set_doorbell();

-- The doorbell: an append notifies only while a process sleeps. A NOTIFY in every transaction would serialise commits.
-- SECURITY DEFINER: a producer needs no right on the table of processes. Every name is qualified, the operator too, so that
-- nobody's search path matters; setting it for the call would cost more than the look itself.
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

-- The condition stands in front of the function because the call alone costs an append more than all that the condition does.
-- It is evaluated after the statement took its ids, so an appender that took none before a mark was committed sees the mark.
CREATE OR REPLACE TRIGGER events_ring
    AFTER INSERT ON inorder.events
    FOR EACH STATEMENT
    WHEN (
        pg_catalog.pg_sequence_last_value('inorder.doorbell'::pg_catalog.regclass)
        OPERATOR(pg_catalog.>) pg_catalog.date_part('epoch', pg_catalog.clock_timestamp())
    )
    EXECUTE FUNCTION inorder.ring();
