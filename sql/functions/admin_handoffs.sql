-- What operators see of hand-offs and do to them. A key is the event_id.

-- How a hand-off stands, in a word: the direct path took the event and has not said that it ran it; it has; a delivery took it.
CREATE OR REPLACE FUNCTION inorder.admin_handoff_state(entry inorder.handoffs)
RETURNS text
LANGUAGE sql
IMMUTABLE
AS $body$
    SELECT CASE WHEN entry.taken_by = 'delivery' THEN 'delivery' WHEN entry.ran_at IS NULL THEN 'unfinished' ELSE 'ran_directly' END
$body$;

-- The hand-offs that fit, in the order of scope and key. NULL: whatever.
CREATE OR REPLACE FUNCTION inorder.admin_handoffs_fitting(
    key uuid, of_scope text, in_state text, older_than interval, max_rows int, after_scope text, after_key uuid,
    unfinished_too boolean DEFAULT true
)
RETURNS SETOF inorder.handoffs
LANGUAGE plpgsql
VOLATILE
SET jit = off
SET plan_cache_mode = force_custom_plan
AS $body$
#variable_conflict use_variable
DECLARE
    -- The primary key begins with the scope.
    scopes CONSTANT text[] := CASE
        WHEN of_scope IS NOT NULL THEN ARRAY[of_scope]
        WHEN key IS NOT NULL THEN ARRAY(SELECT inorder.handoffs_in_scopes())
    END;
BEGIN
    IF in_state NOT IN ('unfinished', 'ran_directly', 'delivery') THEN
        RAISE EXCEPTION 'no hand-off has the state "%"', in_state
            USING ERRCODE = 'IO004', HINT = 'a state is unfinished, ran_directly or delivery; NULL is every state';
    END IF;
    RETURN QUERY
    SELECT h.*
    FROM inorder.handoffs AS h
    WHERE (scopes IS NULL OR h.scope = ANY (scopes))
        AND (key IS NULL OR h.key = key)
        AND (in_state IS DISTINCT FROM 'unfinished' OR h.taken_by = 'direct' AND h.ran_at IS NULL)
        AND (in_state IS DISTINCT FROM 'ran_directly' OR h.ran_at IS NOT NULL)
        AND (in_state IS DISTINCT FROM 'delivery' OR h.taken_by = 'delivery')
        AND (unfinished_too OR h.taken_by = 'delivery' OR h.ran_at IS NOT NULL)
        -- What is of a time that is still to come is of any age: the clock was set back.
        AND (older_than IS NULL OR h.taken_at <= statement_timestamp() - older_than OR h.taken_at > statement_timestamp() + interval '1 minute')
        AND (after_key IS NULL OR (h.scope, h.key) > (coalesce(after_scope, of_scope, ''), after_key))
    ORDER BY h.scope, h.key
    LIMIT max_rows;
END
$body$;

-- Hand-offs: of one event, in one scope, in one state (unfinished, ran_directly, delivery), taken at least so long ago. In the order of
-- scope and key; `after_scope` and `after_key` continue a list.
CREATE OR REPLACE FUNCTION inorder.handoff_rows(
    key uuid DEFAULT NULL, of_scope text DEFAULT NULL, in_state text DEFAULT NULL, older_than interval DEFAULT NULL, max_rows int DEFAULT 100,
    after_scope text DEFAULT NULL, after_key uuid DEFAULT NULL
)
RETURNS TABLE (
    scope text, event_id uuid, state text, taken_at timestamptz, ran_at timestamptz, "position" bigint, event_type text
)
LANGUAGE plpgsql
VOLATILE
SET search_path = pg_catalog, pg_temp
AS $body$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT h.scope, h.key, inorder.admin_handoff_state(h), h.taken_at, h.ran_at, e.id, e.event_type
    FROM inorder.admin_handoffs_fitting(
        handoff_rows.key, of_scope, in_state, older_than, max_rows, after_scope, after_key
    ) AS h
    LEFT JOIN LATERAL (SELECT v.id, v.event_type FROM inorder.events AS v WHERE v.event_id = h.key OFFSET 0) AS e ON true
    ORDER BY h.scope, h.key;
    IF NOT FOUND AND handoff_rows.key IS NOT NULL AND in_state IS NULL AND older_than IS NULL AND after_key IS NULL THEN
        PERFORM inorder.admin_no_handoff(of_scope, handoff_rows.key);
    END IF;
END
$body$;

-- Raises IO003, saying in which scopes there is one.
CREATE OR REPLACE FUNCTION inorder.admin_no_handoff(of_scope text, key uuid)
RETURNS void
LANGUAGE plpgsql
VOLATILE
AS $body$
DECLARE
    there text;
BEGIN
    SELECT string_agg(format('"%s"', h.scope), ', ' ORDER BY h.scope) INTO there
    FROM inorder.admin_handoffs_fitting(key, NULL, NULL, NULL, 20, NULL, NULL) AS h;
    RAISE EXCEPTION 'there is no hand-off of %', coalesce(key::text, 'NULL') || coalesce(format(' in scope "%s"', of_scope), '')
        USING ERRCODE = 'IO003', HINT = coalesce(
            'it is handed off in ' || there,
            'neither side has taken it, or only in the memory of a process, or its row was kept long enough'
        );
END
$body$;

-- Locks a hand-off and answers it as it is under the lock. Raises IO003 where there is none, IO005 where it is being decided.
CREATE OR REPLACE FUNCTION inorder.admin_hold_handoff(of_scope text, key uuid)
RETURNS inorder.handoffs
LANGUAGE plpgsql
VOLATILE
SET lock_timeout = '3s'
AS $body$
#variable_conflict use_variable
DECLARE
    entry inorder.handoffs;
BEGIN
    SELECT h.* INTO entry FROM inorder.handoffs AS h WHERE h.scope = of_scope AND h.key = key FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM inorder.admin_no_handoff(of_scope, key);
    END IF;
    RETURN entry;
EXCEPTION WHEN lock_not_available THEN
    RAISE EXCEPTION 'the hand-off of % in scope "%" is held by another session', key, of_scope
        USING ERRCODE = 'IO005', HINT = 'it is being decided; try again in a moment';
END
$body$;

-- Forgets which side has an event: whoever asks next has it. Processes that run answer by their memory until they are started anew. What
-- the direct path still has to run only with `force`: its deliveries are dropped already, so that nobody may be left who runs it.
CREATE OR REPLACE FUNCTION inorder.handoff_forget(
    scope text, key uuid, "by" text DEFAULT session_user, why text DEFAULT NULL, force boolean DEFAULT false
)
RETURNS SETOF inorder.audit
LANGUAGE plpgsql
VOLATILE
SET search_path = pg_catalog, pg_temp
AS $body$
#variable_conflict use_column
DECLARE
    was inorder.handoffs;
BEGIN
    was := inorder.admin_hold_handoff(handoff_forget.scope, handoff_forget.key);
    IF inorder.admin_handoff_state(was) = 'unfinished' AND NOT force THEN
        RAISE EXCEPTION 'cannot forget the hand-off of % in scope "%": the direct path took it % and has not said that it ran it',
            was.key, was.scope, date_trunc('second', was.taken_at)
            USING ERRCODE = 'IO004',
                HINT = 'a program that asks for what is unfinished runs it; if it has been run, or is to be offered anew, forget it with force: its deliveries may have been dropped, and no other comes by itself';
    END IF;
    DELETE FROM inorder.handoffs AS h WHERE h.scope = was.scope AND h.key = was.key;
    RETURN NEXT inorder.admin_record('handoff_forget', handoff_forget.by, why, NULL, NULL, NULL,
        to_jsonb(was) || jsonb_build_object('state', inorder.admin_handoff_state(was)), NULL);
END
$body$;

-- Forgets the hand-offs that fit, at most `max_rows` of them, with one audit row; `more` where there are more behind the last, which
-- `after_scope` and `after_key` go on from. Those that are being decided at the moment are left out; so is what the direct path still has
-- to run, but for `force`.
CREATE OR REPLACE FUNCTION inorder.handoffs_forget(
    of_scope text DEFAULT NULL, in_state text DEFAULT NULL, older_than interval DEFAULT NULL, max_rows int DEFAULT 100,
    after_scope text DEFAULT NULL, after_key uuid DEFAULT NULL, "by" text DEFAULT session_user, why text DEFAULT NULL,
    force boolean DEFAULT false
)
RETURNS TABLE (forgotten bigint, left_out bigint, more boolean, last_scope text, last_event_id uuid)
LANGUAGE plpgsql
VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $body$
#variable_conflict use_column
DECLARE
    fitting inorder.handoffs[];
    first   inorder.handoffs;
    last    inorder.handoffs;
BEGIN
    IF in_state = 'unfinished' AND NOT force THEN
        RAISE EXCEPTION 'cannot forget what the direct path still has to run'
            USING ERRCODE = 'IO004',
                HINT = 'a program that asks for what is unfinished runs it; if it has been run, or is to be offered anew, forget it with force: its deliveries may have been dropped, and no other comes by itself';
    END IF;
    SELECT array_agg(h ORDER BY h.scope, h.key) INTO fitting
    FROM inorder.admin_handoffs_fitting(NULL, of_scope, in_state, older_than, max_rows, after_scope, after_key, force) AS h;
    first := fitting[1];
    last := fitting[cardinality(fitting)];
    WITH held AS (
        SELECT h.scope, h.key
        FROM inorder.handoffs AS h
        JOIN unnest(fitting) AS f ON f.scope = h.scope AND f.key = h.key
        -- It may have changed since.
        WHERE (force OR h.taken_by = 'delivery' OR h.ran_at IS NOT NULL)
            AND (in_state IS DISTINCT FROM 'unfinished' OR h.ran_at IS NULL)
        ORDER BY h.scope, h.key
        FOR UPDATE OF h SKIP LOCKED
    ), gone AS (
        DELETE FROM inorder.handoffs AS h
        USING held AS l
        WHERE h.scope = l.scope AND h.key = l.key
        RETURNING h.key
    )
    SELECT count(*) INTO forgotten FROM gone;
    left_out := coalesce(cardinality(fitting), 0) - forgotten;
    last_scope := last.scope;
    last_event_id := last.key;
    more := cardinality(fitting) >= max_rows AND EXISTS (
        SELECT FROM inorder.admin_handoffs_fitting(NULL, of_scope, in_state, older_than, 1, last.scope, last.key, force)
    );
    more := coalesce(more, false);
    IF forgotten > 0 THEN
        PERFORM inorder.admin_record('handoffs_forget', handoffs_forget.by, why, NULL, NULL, NULL, NULL,
            jsonb_build_object('forgotten', forgotten, 'scope', of_scope, 'state', in_state, 'older_than', older_than,
                'first', jsonb_build_object('scope', first.scope, 'key', first.key),
                'last', jsonb_build_object('scope', last.scope, 'key', last.key)));
    END IF;
    RETURN NEXT;
END
$body$;

-- Deletes what was kept long enough, of one scope or of all, in one bounded step; again while `more`. `older_than` NULL: as the programs of
-- each scope have it, 30 days where none has said. What the direct path still has to run stays. An hour at least: no statement takes so
-- long that it saw a row which is deleted here.
CREATE OR REPLACE FUNCTION inorder.handoff_prune(
    of_scope text DEFAULT NULL, older_than interval DEFAULT NULL, max_rows int DEFAULT 10000, "by" text DEFAULT session_user,
    why text DEFAULT NULL
)
RETURNS TABLE (deleted bigint, more boolean)
LANGUAGE plpgsql
VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $body$
#variable_conflict use_column
DECLARE
    name text;
    step bigint;
    gone jsonb := '{}';
BEGIN
    IF older_than < interval '1 hour' OR coalesce(max_rows, 0) < 1 THEN
        RAISE EXCEPTION 'cannot prune hand-offs: older_than is %, max_rows is %', coalesce(older_than::text, 'NULL'), coalesce(max_rows::text, 'NULL')
            USING ERRCODE = 'IO004', HINT = 'older_than must be an hour at least, max_rows at least 1';
    END IF;
    deleted := 0;
    FOR name IN SELECT s FROM inorder.handoffs_in_scopes() AS s WHERE of_scope IS NULL OR s = of_scope LOOP
        EXIT WHEN deleted >= max_rows;
        step := inorder.handoffs_sweep(name, older_than, (max_rows - deleted)::int);
        deleted := deleted + step;
        IF step > 0 THEN
            gone := gone || jsonb_build_object(name, step);
        END IF;
    END LOOP;
    more := deleted >= max_rows;
    IF deleted > 0 THEN
        PERFORM inorder.admin_record('handoff_prune', handoff_prune.by, why, NULL, NULL, NULL, NULL,
            jsonb_build_object('deleted', deleted, 'older_than', older_than, 'scopes', gone));
    END IF;
    RETURN NEXT;
END
$body$;
