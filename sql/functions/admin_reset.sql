-- Keeps a range of events that a consumer passed over at an operator's word: nothing in it can be retried, so it is not open.
CREATE OR REPLACE FUNCTION inorder.admin_pass_over(was inorder.consumers, missing int8range, reason text, "by" text)
RETURNS void
LANGUAGE sql
VOLATILE
AS $body$
    INSERT INTO inorder.dead_letters (
        consumer, instance, partition, position, position_to, attempts, error, reason, state, created_by, updated_by
    )
    VALUES (
        was.name, was.instance, was.partition, lower(missing), upper(missing) - 1, was.attempts, was.last_error, reason, 'discarded',
        coalesce(nullif("by", ''), session_user), coalesce(nullif("by", ''), session_user)
    )
$body$;

-- The failure of an event at which a consumer no longer stands is forgotten. A disabled or expired consumer stays so.
CREATE OR REPLACE FUNCTION inorder.admin_clear_failure(lock_key int)
RETURNS inorder.consumers
LANGUAGE sql
VOLATILE
AS $body$
    UPDATE inorder.consumers AS c
    SET status = CASE WHEN c.status = 'dead' THEN 'idle' ELSE c.status END,
        attempts = 0,
        faults = 0,
        rearms = 0,
        next_attempt_at = NULL,
        failed_event_id = NULL,
        last_error = NULL,
        last_error_at = NULL
    WHERE c.lock_key = $1
    RETURNING *
$body$;

-- Raises IO004 where a reset would do again what the ledger has forgotten, and nobody said that it may; and where it is said of a
-- consumer to which it does not apply.
CREATE OR REPLACE FUNCTION inorder.admin_refuse_repeating(was inorder.consumers, to_id bigint, whole boolean, repeat_effects boolean)
RETURNS void
LANGUAGE plpgsql
VOLATILE
AS $body$
DECLARE
    lowest  bigint;
    refusal text;
    way_out text;
BEGIN
    SELECT f.floor INTO lowest
    FROM inorder.ledger_floors AS f
    WHERE f.handler = inorder.ledger_handler(was.name, was.instance) AND was.kind IN ('effect', 'queued');
    IF repeat_effects AND was.kind NOT IN ('effect', 'queued') THEN
        refusal := format('what a %s consumer reads again it does again anyway', was.kind);
        way_out := 'leave repeat_effects out: it is for effect and queued consumers';
    ELSIF to_id < lowest AND to_id < was.position AND NOT repeat_effects THEN
        refusal := format('what it did up to %s is forgotten, and would be done again', lowest);
        way_out := format('reset to %s or above, or say that effects may repeat with repeat_effects', lowest);
    ELSIF to_id < lowest AND repeat_effects AND was.partitions > 1 AND NOT whole THEN
        refusal := format('what its partitions did up to %s is forgotten of all of them alike', lowest);
        way_out := 'reset all partitions together';
    END IF;
    IF refusal IS NOT NULL THEN
        RAISE EXCEPTION 'cannot reset % to %: %',
            inorder.admin_name(was.name, was.instance, CASE WHEN was.partitions > 1 THEN was.partition END), to_id, refusal
            USING ERRCODE = 'IO004', HINT = way_out;
    END IF;
END
$body$;

-- What an effect or queued consumer did above a place may be done again: the ledger forgets it. At most `max_effects`; the answer is
-- how many. What is being done at the moment stays. Open dead letters of what is to be done again are discarded.
CREATE OR REPLACE FUNCTION inorder.admin_repeat_effects(was inorder.consumers, to_id bigint, max_effects int)
RETURNS bigint
LANGUAGE plpgsql
VOLATILE
SET jit = off
AS $body$
DECLARE
    whose   CONSTANT text := inorder.ledger_handler(was.name, was.instance);
    effects uuid[];
BEGIN
    SELECT array_agg(d.event_id) INTO effects
    FROM (
        SELECT l.event_id
        FROM inorder.events AS e
        JOIN inorder.ledger AS l ON l.event_id = e.event_id AND l.handler = whose AND l.status IN ('done', 'dead')
        WHERE e.id > to_id
            AND (was.event_types IS NULL OR e.event_type = ANY (was.event_types))
            AND (was.partitions = 1 OR (e.stream_hash & 2147483647) % was.partitions = was.partition)
        LIMIT max_effects::bigint + 1
    ) AS d;
    IF cardinality(effects) > max_effects THEN
        RAISE EXCEPTION 'cannot reset % to %: more than % effects above it are done',
            inorder.admin_name(was.name, was.instance, NULL), to_id, max_effects
            USING ERRCODE = 'IO004',
                HINT = 'reset it to a place nearer by, or raise max_effects: all of them are forgotten in one transaction';
    END IF;
    -- Those that were given up are delivered again, and leave another letter if need be.
    UPDATE inorder.dead_letters AS d
    SET state = 'discarded', updated_at = clock_timestamp(), updated_by = 'inorder'
    WHERE d.consumer = was.name AND d.instance = was.instance AND d.event_id = ANY (effects) AND d.state IN ('open', 'retry_requested');
    DELETE FROM inorder.ledger AS l
    WHERE l.event_id = ANY (effects) AND l.handler = whose AND l.status IN ('done', 'dead');
    RETURN coalesce(cardinality(effects), 0);
END
$body$;

-- Moves a consumer: the next event that it is given is the first above `to_id`. Never beyond the safe head; below what was
-- pruned only with `accept_pruned`. The failure is cleared; a disabled or expired consumer stays so. Events that are passed over
-- leave a dead letter for the range. What an effect or queued consumer did stays done, though its events are read again, unless
-- `repeat_effects` says that it may be done again; without, it is refused at a place above which the ledger has forgotten something.
CREATE OR REPLACE FUNCTION inorder.reset(
    consumer text, to_id bigint, instance text DEFAULT '', partition int DEFAULT NULL,
    "by" text DEFAULT session_user, why text DEFAULT NULL, force boolean DEFAULT false,
    accept_pruned boolean DEFAULT false, repeat_effects boolean DEFAULT false, max_effects int DEFAULT 100000
)
RETURNS SETOF inorder.audit
LANGUAGE plpgsql
VOLATILE
SET search_path = pg_catalog, pg_temp
AS $body$
#variable_conflict use_column
DECLARE
    was      inorder.consumers;
    now      inorder.consumers;
    next     inorder.events;
    missing  int8range;
    gone     int8range;
    head     bigint;
    repeated bigint;
BEGIN
    PERFORM inorder.admin_hold_log(false);
    FOR was IN SELECT * FROM inorder.admin_hold(consumer, instance, partition, force) LOOP
        head := coalesce(head, inorder.safe_head());
        IF to_id IS NULL OR to_id < 0 OR to_id > head THEN
            RAISE EXCEPTION 'cannot reset % to %: it must lie between 0 and the safe head, %',
                inorder.admin_name(consumer, instance, partition), coalesce(to_id::text, 'NULL'), head
                USING ERRCODE = 'IO004', HINT = '''beginning'' and ''head'' name the two ends';
        END IF;
        missing := inorder.pruned_unread(to_id, was.accepted_to, was.event_types);
        IF missing IS NOT NULL AND NOT accept_pruned THEN
            RAISE EXCEPTION 'cannot reset % to %: events in % were pruned', inorder.admin_name(consumer, instance, partition), to_id, missing
                USING ERRCODE = 'IO004',
                    HINT = format('reset to %s or above, or accept that they are gone with accept_pruned', upper(missing) - 1);
        END IF;
        PERFORM inorder.admin_refuse_repeating(was, to_id, partition IS NULL, repeat_effects);
        -- What it passes over: what was pruned unread, as far as it moves or all of it, and what is there.
        gone := inorder.pruned_unread(least(was.position, to_id), was.accepted_to, was.event_types);
        IF missing IS NULL THEN
            gone := gone * int8range(NULL, to_id, '(]');
        END IF;
        IF NOT isempty(gone) THEN
            PERFORM inorder.admin_pass_over(was, gone, 'pruned', reset.by);
        END IF;
        next := inorder.admin_next_event(was, to_id);
        IF next.id IS NOT NULL THEN
            PERFORM inorder.admin_pass_over(was, int8range(next.id, to_id, '[]'), 'operator_skip', reset.by);
        END IF;
        IF repeat_effects THEN
            repeated := inorder.admin_repeat_effects(was, to_id, max_effects);
            UPDATE inorder.ledger_floors AS f
            SET floor = to_id, updated_at = clock_timestamp()
            WHERE f.handler = inorder.ledger_handler(was.name, was.instance) AND f.floor > to_id;
        END IF;
        UPDATE inorder.consumers AS c
        SET position = greatest(to_id, (SELECT s.pruned_to FROM inorder.log_state AS s WHERE missing IS NOT NULL)),
            accepted_to = greatest(c.accepted_to, upper(missing) - 1),
            updated_at = clock_timestamp()
        WHERE c.lock_key = was.lock_key;
        now := inorder.admin_clear_failure(was.lock_key);
        RETURN NEXT inorder.admin_record('reset', reset.by, why, was.name, was.instance, was.partition, to_jsonb(was),
            to_jsonb(now) || CASE WHEN repeat_effects THEN jsonb_build_object('effects_to_repeat', repeated) ELSE '{}' END);
    END LOOP;
END
$body$;

-- The same, to a place that has a name: 'beginning' or 'head' (the safe head). Digits are an id.
CREATE OR REPLACE FUNCTION inorder.reset(
    consumer text, to_place text, instance text DEFAULT '', partition int DEFAULT NULL,
    "by" text DEFAULT session_user, why text DEFAULT NULL, force boolean DEFAULT false,
    accept_pruned boolean DEFAULT false, repeat_effects boolean DEFAULT false, max_effects int DEFAULT 100000
)
RETURNS SETOF inorder.audit
LANGUAGE plpgsql
VOLATILE
SET search_path = pg_catalog, pg_temp
AS $body$
BEGIN
    IF to_place IS NULL OR to_place !~ '^(beginning|head|-?[0-9]{1,18})$' THEN
        RAISE EXCEPTION 'cannot reset % to "%"', inorder.admin_name(consumer, instance, partition), to_place
            USING ERRCODE = 'IO004', HINT = 'a place is ''beginning'', ''head'' or an id';
    END IF;
    RETURN QUERY
    SELECT *
    FROM inorder.reset(
        consumer,
        CASE to_place WHEN 'beginning' THEN 0 WHEN 'head' THEN inorder.safe_head() ELSE to_place::bigint END,
        instance, partition, reset.by, why, force, accept_pruned, repeat_effects, max_effects
    );
END
$body$;

-- Accepts that events which a consumer had not read were pruned: it runs again, behind them. A dead letter keeps the range.
CREATE OR REPLACE FUNCTION inorder.accept_pruned(
    consumer text, instance text DEFAULT '', partition int DEFAULT NULL,
    "by" text DEFAULT session_user, why text DEFAULT NULL, force boolean DEFAULT false
)
RETURNS SETOF inorder.audit
LANGUAGE plpgsql
VOLATILE
SET search_path = pg_catalog, pg_temp
AS $body$
#variable_conflict use_column
DECLARE
    was     inorder.consumers;
    now     inorder.consumers;
    missing int8range;
    place   bigint;
    done    boolean := false;
BEGIN
    PERFORM inorder.admin_hold_log(false);
    FOR was IN SELECT * FROM inorder.admin_hold(consumer, instance, partition, force) LOOP
        missing := inorder.pruned_unread(was.position, was.accepted_to, was.event_types);
        CONTINUE WHEN missing IS NULL;
        done := true;
        PERFORM inorder.admin_pass_over(was, missing, 'pruned', accept_pruned.by);
        -- Where nothing at all is left it moves at once, so that nobody gives it from memory what the letter says is gone.
        SELECT greatest(was.position, s.pruned_to) INTO place FROM inorder.log_state AS s;
        UPDATE inorder.consumers AS c
        SET accepted_to = upper(missing) - 1, position = place, updated_at = clock_timestamp()
        WHERE c.lock_key = was.lock_key
        RETURNING * INTO now;
        IF place > was.position THEN
            now := inorder.admin_clear_failure(was.lock_key);
        END IF;
        RETURN NEXT inorder.admin_record('accept_pruned', accept_pruned.by, why, was.name, was.instance, was.partition, to_jsonb(was), to_jsonb(now));
    END LOOP;
    IF NOT done THEN
        RAISE EXCEPTION 'cannot accept anything for %: no event that it has not read was pruned',
            inorder.admin_name(consumer, instance, partition)
            USING ERRCODE = 'IO004', HINT = 'nothing is to be done; progress() shows what is missing in missing_from and missing_to';
    END IF;
END
$body$;
