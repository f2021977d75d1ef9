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

-- Moves a consumer: the next event that it is given is the first above `to_id`. Never beyond the safe head; below what was
-- pruned only with `accept_pruned`. The failure is cleared; a disabled or expired consumer stays so. Events that are passed over
-- leave a dead letter for the range; effects that are done stay done, and are done again for events that are delivered again.
CREATE OR REPLACE FUNCTION inorder.reset(
    consumer text, to_id bigint, instance text DEFAULT '', partition int DEFAULT NULL,
    "by" text DEFAULT session_user, why text DEFAULT NULL, force boolean DEFAULT false,
    accept_pruned boolean DEFAULT false
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
    next    inorder.events;
    missing int8range;
    gone    int8range;
    head    bigint;
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
        UPDATE inorder.consumers AS c
        SET position = greatest(to_id, (SELECT s.pruned_to FROM inorder.log_state AS s WHERE missing IS NOT NULL)),
            accepted_to = greatest(c.accepted_to, upper(missing) - 1),
            updated_at = clock_timestamp()
        WHERE c.lock_key = was.lock_key;
        now := inorder.admin_clear_failure(was.lock_key);
        RETURN NEXT inorder.admin_record('reset', reset.by, why, was.name, was.instance, was.partition, to_jsonb(was), to_jsonb(now));
    END LOOP;
END
$body$;

-- The same, to a place that has a name: 'beginning' or 'head' (the safe head). Digits are an id.
CREATE OR REPLACE FUNCTION inorder.reset(
    consumer text, to_place text, instance text DEFAULT '', partition int DEFAULT NULL,
    "by" text DEFAULT session_user, why text DEFAULT NULL, force boolean DEFAULT false,
    accept_pruned boolean DEFAULT false
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
        instance, partition, reset.by, why, force, accept_pruned
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
