-- The safe head: the highest id such that every id at or below it is visible or never will be.

-- Who could still fill a hole: every transaction that has taken an id holds RowExclusiveLock on the identity sequence
-- until after its commit is visible. Prepared transactions have no pid.
CREATE OR REPLACE FUNCTION inorder.writers()
RETURNS TABLE (virtualtransaction text, pid int)
LANGUAGE sql
VOLATILE
AS $body$
    SELECT l.virtualtransaction, l.pid
    FROM pg_catalog.pg_locks AS l
    WHERE l.locktype = 'relation'
        AND l.relation = 'inorder.events_id_seq'::regclass
        AND l.database = (SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = current_database())
        AND l.mode = 'RowExclusiveLock'
        AND l.granted
$body$;

-- Everything that the safe head rests on and that does not hold, in words; an empty array when all is well.
-- PL/pgSQL keeps the plan for the session: planning costs several times what the answer does. One made while the log was small
-- must not sort the whole log when it has grown.
CREATE OR REPLACE FUNCTION inorder.unsafe()
RETURNS text[]
LANGUAGE plpgsql
VOLATILE
SET enable_sort = off
AS $body$
BEGIN
    RETURN (SELECT array_remove(ARRAY[
        CASE WHEN k.seqcache <> 1
            THEN format('sequence %s has CACHE %s: ids are handed out late; ALTER SEQUENCE %1$s CACHE 1', k.name, k.seqcache) END,
        CASE WHEN k.seqincrement <> 1
            THEN format('sequence %s has INCREMENT %s; ALTER SEQUENCE %1$s INCREMENT 1', k.name, k.seqincrement) END,
        CASE WHEN k.seqcycle
            THEN format('sequence %s may CYCLE; ALTER SEQUENCE %1$s NO CYCLE', k.name) END,
        CASE WHEN k.relpersistence <> 'p'
            THEN format('sequence %s is not logged: a crash would begin it anew; ALTER SEQUENCE %1$s SET LOGGED', k.name) END,
        CASE WHEN e.relpersistence <> 'p'
            THEN format('table %s is not logged: a crash would empty it; ALTER TABLE %1$s SET LOGGED', e.oid::regclass) END,
        CASE WHEN e.relkind <> 'r' OR EXISTS (SELECT FROM pg_catalog.pg_inherits AS h WHERE h.inhparent = e.oid)
            THEN format('table %s is not an ordinary table without children: their rows have ids of their own', e.oid::regclass) END,
        CASE WHEN NOT EXISTS (
                SELECT FROM pg_catalog.pg_attribute AS a WHERE a.attrelid = e.oid AND a.attname = 'id' AND a.attidentity = 'a'
            )
            THEN format('column id of table %s takes ids that its sequence did not give: whoever names one is not waited for; '
                'ALTER TABLE %1$s ALTER id SET GENERATED ALWAYS', e.oid::regclass) END,
        CASE WHEN EXISTS (SELECT FROM pg_catalog.pg_subscription_rel AS r WHERE r.srrelid = e.oid)
            THEN format('table %s is filled by logical replication, which commits ids in any order', e.oid::regclass) END,
        CASE WHEN pg_catalog.pg_is_in_recovery()
            THEN 'the server is a standby, which cannot tell who is writing: connect to the primary' END,
        CASE WHEN pg_catalog.row_security_active(e.oid) OR pg_catalog.row_security_active('inorder.consumers'::regclass)
            THEN 'row security applies to this role: rows could be hidden; ALTER ROLE … BYPASSRLS, or take the policies away' END,
        CASE WHEN k.given < l.highest
            THEN format('sequence %s stands at %s, below %s, the highest id: ids would be used again; ALTER SEQUENCE %1$s RESTART WITH %4$s',
                k.name, k.given, l.highest, l.highest + 1) END,
        CASE WHEN k.given < l.position
            THEN format('consumer %L is at %s, beyond the last id %s that was ever given: the log lost its tail; reset the consumer',
                (SELECT min(c.name) FROM inorder.consumers AS c WHERE c.position = l.position), l.position, k.given) END
    ], NULL)
    FROM (
        SELECT s.seqrelid::regclass AS name, s.seqcache, s.seqincrement, s.seqcycle, c.relpersistence,
               -- The last id that was given.
               q.last_value - CASE WHEN q.is_called THEN 0 ELSE 1 END AS given
        FROM pg_catalog.pg_sequence AS s
        JOIN pg_catalog.pg_class AS c ON c.oid = s.seqrelid
        CROSS JOIN inorder.events_id_seq AS q
        WHERE s.seqrelid = 'inorder.events_id_seq'::regclass
    ) AS k
    CROSS JOIN (
        SELECT greatest(
                   (SELECT id FROM inorder.events ORDER BY id DESC LIMIT 1),
                   (SELECT pruned_to FROM inorder.log_state)
               ) AS highest,
               (SELECT max(position) FROM inorder.consumers) AS position
    ) AS l
    CROSS JOIN pg_catalog.pg_class AS e
    WHERE e.oid = 'inorder.events'::regclass);
END
$body$;

-- Where everything is known to be settled: pruned, or dealt with by a consumer, which never passes the safe head.
CREATE OR REPLACE FUNCTION inorder.settled()
RETURNS bigint
LANGUAGE sql
VOLATILE
AS $body$
    SELECT greatest(
        (SELECT pruned_to FROM inorder.log_state),
        (SELECT max(t.value::bigint) FROM inorder.log_state AS s CROSS JOIN jsonb_each_text(s.pruned_types) AS t),
        (SELECT max(position) FROM inorder.consumers)
    )
$body$;

-- A safe head, found without waiting: rows first, then who is writing. Nobody: the highest id. Otherwise the contiguous
-- prefix above what is settled, of which no more than five million ids are counted. Separate statements, so that each has a
-- snapshot of its own.
CREATE OR REPLACE FUNCTION inorder.safe_head()
RETURNS bigint
LANGUAGE plpgsql
VOLATILE
AS $body$
DECLARE
    top     bigint;
    head    bigint;
    reached bigint;
    step    CONSTANT int := 10000;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'safe_head() needs READ COMMITTED, not %: one snapshot cannot see what commits meanwhile',
            upper(current_setting('transaction_isolation'))
            USING ERRCODE = 'IO006';
    END IF;
    head := inorder.settled();
    SELECT greatest(head, max(id)) INTO top FROM inorder.events;
    IF NOT EXISTS (SELECT FROM inorder.writers()) THEN
        head := top;
    -- Our own uncommitted events are visible to us and to nobody else.
    ELSIF NOT EXISTS (SELECT FROM inorder.writers() AS w WHERE w.pid = pg_backend_pid()) THEN
        FOR turn IN 1..500 LOOP
            SELECT coalesce(max(id), head) INTO reached
            FROM (
                SELECT id, row_number() OVER (ORDER BY id) AS n
                FROM (SELECT id FROM inorder.events WHERE id > head ORDER BY id LIMIT step) AS ahead
            ) AS numbered
            WHERE id = head + n;
            EXIT WHEN reached = head;
            head := reached;
        END LOOP;
    END IF;
    RETURN head;
END
$body$;
