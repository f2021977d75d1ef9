-- The dead letters that fit; NULL fits every letter.
CREATE OR REPLACE FUNCTION inorder.admin_fitting_letters(
    consumer text, instance text, event_type text, reason text, error text, after_id bigint, to_id bigint, state text
)
RETURNS SETOF inorder.dead_letters
LANGUAGE sql
STABLE
AS $body$
    SELECT d.*
    FROM inorder.dead_letters AS d
    WHERE ($8 IS NULL OR d.state = $8) AND d.id > $6 AND ($7 IS NULL OR d.id <= $7)
        AND ($1 IS NULL OR d.consumer = $1)
        AND ($2 IS NULL OR d.instance = $2)
        AND ($3 IS NULL OR d.event_type = $3)
        AND ($4 IS NULL OR d.reason = $4)
        AND ($5 IS NULL OR strpos(lower(d.error), lower($5)) > 0)
$body$;

-- What was passed over, oldest first: of one consumer or of all, in one state or (NULL) in any. `after_id` continues a list; the rest
-- narrows it down to what retry_dead_letters() and discard_dead_letters() would find.
CREATE OR REPLACE FUNCTION inorder.dead_letters(
    consumer text DEFAULT NULL, state text DEFAULT 'open', max_rows int DEFAULT 100, after_id bigint DEFAULT 0,
    instance text DEFAULT NULL, event_type text DEFAULT NULL, reason text DEFAULT NULL, error text DEFAULT NULL, to_id bigint DEFAULT NULL
)
RETURNS SETOF inorder.dead_letters
LANGUAGE plpgsql
VOLATILE
SET search_path = pg_catalog, pg_temp
AS $body$
#variable_conflict use_column
BEGIN
    IF dead_letters.state NOT IN ('open', 'retry_requested', 'resolved', 'discarded') THEN
        RAISE EXCEPTION 'no dead letter has the state "%"', dead_letters.state
            USING ERRCODE = 'IO004', HINT = 'a state is open, retry_requested, resolved or discarded; NULL is every state';
    END IF;
    -- Those of a consumer that is gone are still told.
    IF consumer IS NOT NULL
        AND NOT EXISTS (SELECT FROM inorder.dead_letters AS d WHERE d.consumer = dead_letters.consumer)
        AND NOT EXISTS (SELECT FROM inorder.consumers AS c WHERE c.name = dead_letters.consumer)
    THEN
        PERFORM inorder.admin_known(consumer, '', NULL);
    END IF;
    RETURN QUERY
    SELECT d.*
    FROM inorder.admin_fitting_letters(consumer, instance, event_type, reason, error, after_id, to_id, state) AS d
    ORDER BY d.id
    LIMIT max_rows;
END
$body$;

-- One dead letter, with its event; the event's columns are NULL where it was pruned, and for a range.
CREATE OR REPLACE FUNCTION inorder.dead_letter(letter_id bigint)
RETURNS TABLE (
    id bigint, consumer text, instance text, partition int, "position" bigint, position_to bigint, event_id uuid, event_type text,
    attempts int, error text, reason text, state text, created_at timestamptz, created_by text, updated_at timestamptz, updated_by text,
    tenant_id text, stream_type text, stream_id text, stream_version bigint, schema_version int, payload json, metadata json,
    correlation_id uuid, causation_id uuid, recorded_at timestamptz
)
LANGUAGE plpgsql
VOLATILE
SET search_path = pg_catalog, pg_temp
AS $body$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT d.id, d.consumer, d.instance, d.partition, d.position, d.position_to, d.event_id, d.event_type,
           d.attempts, d.error, d.reason, d.state, d.created_at, d.created_by, d.updated_at, d.updated_by,
           e.tenant_id, e.stream_type, e.stream_id, e.stream_version, e.schema_version, e.payload, e.metadata,
           e.correlation_id, e.causation_id, e.recorded_at
    FROM inorder.dead_letters AS d
    LEFT JOIN inorder.events AS e ON e.event_id = d.event_id
    WHERE d.id = letter_id;
    IF NOT FOUND THEN
        PERFORM inorder.admin_hold_letter(letter_id);
    END IF;
END
$body$;

-- Locks a dead letter and answers it as it is under the lock. Raises IO003 where there is none, IO005 where it is being delivered.
CREATE OR REPLACE FUNCTION inorder.admin_hold_letter(letter_id bigint)
RETURNS inorder.dead_letters
LANGUAGE plpgsql
VOLATILE
SET lock_timeout = '3s'
AS $body$
DECLARE
    letter  inorder.dead_letters;
    holders text;
BEGIN
    SELECT * INTO letter FROM inorder.dead_letters AS d WHERE d.id = letter_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no dead letter %', coalesce(letter_id::text, 'NULL')
            USING ERRCODE = 'IO003', HINT = 'dead_letters() lists them';
    END IF;
    RETURN letter;
EXCEPTION WHEN lock_not_available THEN
    SELECT string_agg(inorder.admin_session(l.pid), ', ') INTO holders
    FROM inorder.dead_letters AS d
    JOIN pg_catalog.pg_locks AS l ON l.locktype = 'transactionid' AND l.transactionid = d.xmax AND l.granted
    WHERE d.id = letter_id;
    RAISE EXCEPTION 'dead letter % is held by %', letter_id, coalesce(holders, 'another session')
        USING ERRCODE = 'IO005', HINT = 'it is being delivered or decided on; try again in a moment';
END
$body$;

-- Why a dead letter cannot be retried, and what to do about it; NULL where it can be.
CREATE OR REPLACE FUNCTION inorder.admin_not_retried(was inorder.dead_letters, OUT refusal text, OUT way_out text)
LANGUAGE plpgsql
VOLATILE
AS $body$
BEGIN
    IF was.position_to IS NOT NULL THEN
        refusal := format('it is a range, %s to %s', was.position, was.position_to);
        way_out := format('reset() the consumer to %s to have what is left of the range delivered again', was.position - 1);
    ELSIF was.state NOT IN ('open', 'discarded') THEN
        refusal := format('its state is %s', was.state);
        way_out := CASE was.state
            WHEN 'resolved' THEN 'its event was delivered since'
            ELSE 'the consumer delivers it at its next pass; is it running, and neither dead nor disabled?'
        END;
    ELSIF NOT EXISTS (SELECT FROM inorder.events AS e WHERE e.event_id = was.event_id) THEN
        refusal := format('its event %s is no longer in the log', was.event_id);
        way_out := 'discard_dead_letter() settles it';
    ELSIF EXISTS (
        SELECT
        FROM inorder.consumers AS c
        JOIN inorder.ledger AS l ON l.handler = inorder.ledger_handler(c.name, c.instance)
        WHERE c.name = was.consumer AND c.instance = was.instance AND c.kind = 'queued' AND l.event_id = was.event_id AND l.status = 'done'
    ) THEN
        refusal := 'its event was handled since';
        way_out := 'discard_dead_letter() settles it; ledger_forget() has the event handled again';
    END IF;
END
$body$;

-- Has the events of dead letters delivered once more. A queue has no pass that does: its rows in the ledger begin anew.
CREATE OR REPLACE FUNCTION inorder.admin_request_retry(letters bigint[], "by" text)
RETURNS SETOF inorder.dead_letters
LANGUAGE plpgsql
VOLATILE
AS $body$
BEGIN
    INSERT INTO inorder.ledger AS l (event_id, handler, status, position, stream)
    SELECT DISTINCT e.event_id, inorder.ledger_handler(d.consumer, d.instance), 'pending', e.id,
        inorder.ledger_stream(e.tenant_id, e.stream_type, e.stream_id)
    FROM inorder.dead_letters AS d
    JOIN inorder.events AS e ON e.event_id = d.event_id
    WHERE d.id = ANY (letters) AND EXISTS (
        SELECT FROM inorder.consumers AS c WHERE c.name = d.consumer AND c.instance = d.instance AND c.kind = 'queued'
    )
    ORDER BY e.event_id
    ON CONFLICT ON CONSTRAINT ledger_pkey
    DO UPDATE SET status = 'pending', attempts = 0, faults = 0, next_attempt_at = NULL, updated_at = clock_timestamp()
    WHERE l.status = 'dead';
    RETURN QUERY
    UPDATE inorder.dead_letters AS d
    SET state = 'retry_requested', updated_at = clock_timestamp(), updated_by = coalesce(nullif($2, ''), session_user)
    WHERE d.id = ANY (letters)
    RETURNING d.*;
END
$body$;

-- Settles dead letters. What was to be retried by a queue and has not begun is given up.
CREATE OR REPLACE FUNCTION inorder.admin_discard(letters bigint[], "by" text)
RETURNS SETOF inorder.dead_letters
LANGUAGE plpgsql
VOLATILE
AS $body$
BEGIN
    PERFORM inorder.ledger_give_up(d.consumer, d.instance, d.event_id)
    FROM inorder.dead_letters AS d
    WHERE d.id = ANY (letters) AND d.state = 'retry_requested' AND EXISTS (
        SELECT FROM inorder.consumers AS c WHERE c.name = d.consumer AND c.instance = d.instance AND c.kind = 'queued'
    );
    RETURN QUERY
    UPDATE inorder.dead_letters AS d
    SET state = 'discarded', updated_at = clock_timestamp(), updated_by = coalesce(nullif($2, ''), session_user)
    WHERE d.id = ANY (letters)
    RETURNING d.*;
END
$body$;

-- Asks for one more delivery of a dead letter's event: the consumer's own pass does it, out of order, and resolves the letter.
-- A discarded one can be taken back as long as its event is there; so prune must not be under way.
CREATE OR REPLACE FUNCTION inorder.retry_dead_letter(letter_id bigint, "by" text DEFAULT session_user, why text DEFAULT NULL)
RETURNS SETOF inorder.audit
LANGUAGE plpgsql
VOLATILE
SET search_path = pg_catalog, pg_temp
AS $body$
#variable_conflict use_column
DECLARE
    was inorder.dead_letters;
    now inorder.dead_letters;
    refusal text;
    way_out text;
BEGIN
    PERFORM inorder.admin_hold_log(false);
    was := inorder.admin_hold_letter(letter_id);
    SELECT n.refusal, n.way_out INTO refusal, way_out FROM inorder.admin_not_retried(was) AS n;
    IF refusal IS NOT NULL THEN
        RAISE EXCEPTION 'cannot retry dead letter %: %', letter_id, refusal USING ERRCODE = 'IO004', HINT = way_out;
    END IF;
    PERFORM inorder.admin_known(was.consumer, was.instance, was.partition);
    SELECT * INTO now FROM inorder.admin_request_retry(ARRAY[letter_id], retry_dead_letter.by);
    RETURN NEXT inorder.admin_record('retry_dead_letter', retry_dead_letter.by, why, was.consumer, was.instance, was.partition, to_jsonb(was), to_jsonb(now));
END
$body$;

-- Settles a dead letter: its event will not be delivered again, and no longer holds back prune.
CREATE OR REPLACE FUNCTION inorder.discard_dead_letter(letter_id bigint, "by" text DEFAULT session_user, why text DEFAULT NULL)
RETURNS SETOF inorder.audit
LANGUAGE plpgsql
VOLATILE
SET search_path = pg_catalog, pg_temp
AS $body$
#variable_conflict use_column
DECLARE
    was inorder.dead_letters;
    now inorder.dead_letters;
BEGIN
    was := inorder.admin_hold_letter(letter_id);
    IF was.state NOT IN ('open', 'retry_requested') THEN
        RAISE EXCEPTION 'cannot discard dead letter %: its state is %', letter_id, was.state
            USING ERRCODE = 'IO004', HINT = 'nothing is to be done';
    END IF;
    SELECT * INTO now FROM inorder.admin_discard(ARRAY[letter_id], discard_dead_letter.by);
    RETURN NEXT inorder.admin_record('discard_dead_letter', discard_dead_letter.by, why, was.consumer, was.instance, was.partition, to_jsonb(was), to_jsonb(now));
END
$body$;

-- Retries, or discards, the dead letters that fit: oldest first, at most `max_letters`, and none after `stop_at`. Those that are held by
-- a pass, or cannot be retried, are left out. One audit row names them all.
CREATE OR REPLACE FUNCTION inorder.admin_settle_letters(
    action text, consumer text, instance text, event_type text, reason text, error text, from_id bigint, to_id bigint, state text,
    max_letters int, stop_at timestamptz, "by" text, why text,
    OUT letters bigint[], OUT left_out bigint, OUT more boolean
)
LANGUAGE plpgsql
VOLATILE
SET jit = off
AS $body$
#variable_conflict use_column
DECLARE
    retries CONSTANT boolean := action = 'retry_dead_letters';
    after   CONSTANT bigint := coalesce(from_id, 1) - 1;
    reached bigint := after;
    part    bigint[];
    held    bigint[];
BEGIN
    IF coalesce(max_letters, 0) < 1 THEN
        RAISE EXCEPTION 'cannot settle dead letters: max_letters is %', coalesce(max_letters::text, 'NULL')
            USING ERRCODE = 'IO004', HINT = 'it must be at least 1';
    ELSIF state IS NULL OR state NOT IN ('open', CASE WHEN retries THEN 'discarded' ELSE 'retry_requested' END) THEN
        RAISE EXCEPTION 'cannot settle dead letters whose state is %', coalesce(state, 'NULL')
            USING ERRCODE = 'IO004', HINT = 'open or discarded ones can be retried, open ones or those to be retried can be discarded';
    ELSIF consumer IS NOT NULL
        AND NOT EXISTS (SELECT FROM inorder.dead_letters AS d WHERE d.consumer = admin_settle_letters.consumer)
    THEN
        PERFORM inorder.admin_known(consumer, coalesce(instance, ''), NULL);
    END IF;
    -- Prune must not be under way: it goes by what is open.
    PERFORM inorder.admin_hold_log(false);
    letters := '{}';
    LOOP
        -- In parts, so that the time is looked at in between.
        EXIT WHEN cardinality(letters) >= max_letters OR stop_at <= clock_timestamp();
        SELECT array_agg(f.id ORDER BY f.id) INTO part
        FROM (
            SELECT l.id
            FROM inorder.admin_fitting_letters(consumer, instance, event_type, reason, error, reached, to_id, state) AS l
            ORDER BY l.id
            LIMIT least(500, max_letters - cardinality(letters))
        ) AS f;
        EXIT WHEN part IS NULL;
        reached := part[cardinality(part)];
        SELECT array_agg(h.id ORDER BY h.id) INTO held
        FROM (
            SELECT d.id, d AS letter, d.consumer, d.instance, d.partition
            FROM inorder.dead_letters AS d
            WHERE d.id = ANY (part) AND d.state = admin_settle_letters.state
            ORDER BY d.id
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS h
        WHERE NOT retries
            OR (SELECT n.refusal IS NULL FROM inorder.admin_not_retried(h.letter) AS n)
            AND EXISTS (
                SELECT FROM inorder.consumers AS c WHERE c.name = h.consumer AND c.instance = h.instance AND c.partition = h.partition
            );
        IF retries THEN
            PERFORM FROM inorder.admin_request_retry(held, "by");
        ELSE
            PERFORM FROM inorder.admin_discard(held, "by");
        END IF;
        letters := letters || held;
    END LOOP;
    SELECT count(*) FILTER (WHERE f.id <= reached), count(*) FILTER (WHERE f.id > reached) > 0 INTO left_out, more
    FROM inorder.admin_fitting_letters(consumer, instance, event_type, reason, error, after, to_id, state) AS f;
    IF cardinality(letters) > 0 THEN
        PERFORM inorder.admin_record(
            action, "by", why, consumer, instance, NULL,
            jsonb_strip_nulls(jsonb_build_object('state', state, 'event_type', event_type, 'reason', reason, 'error', error,
                'from_id', from_id, 'to_id', to_id)),
            jsonb_build_object('state', CASE WHEN retries THEN 'retry_requested' ELSE 'discarded' END, 'letters', letters)
        );
        PERFORM inorder.admin_ring();
    END IF;
END
$body$;

-- Asks for one more delivery of the events of all dead letters that fit: of a consumer, an event type, for a reason, with these words in
-- the error, in a range of the letters' ids. At most `max_letters`, and none after `stop_at`; call again while `more`, behind the last of
-- `letters`. `left_out`: cannot be retried (a range, an event that was pruned, a consumer that is gone), or held by a pass.
CREATE OR REPLACE FUNCTION inorder.retry_dead_letters(
    consumer text DEFAULT NULL, instance text DEFAULT NULL, event_type text DEFAULT NULL, reason text DEFAULT NULL, error text DEFAULT NULL,
    from_id bigint DEFAULT NULL, to_id bigint DEFAULT NULL, state text DEFAULT 'open',
    max_letters int DEFAULT 100, stop_at timestamptz DEFAULT NULL, "by" text DEFAULT session_user, why text DEFAULT NULL
)
RETURNS TABLE (letters bigint[], left_out bigint, more boolean)
LANGUAGE sql
VOLATILE
SET search_path = pg_catalog, pg_temp
AS $body$
    SELECT *
    FROM inorder.admin_settle_letters(
        'retry_dead_letters', consumer, instance, event_type, reason, error, from_id, to_id, state, max_letters, stop_at, "by", why
    )
$body$;

-- Settles all dead letters that fit, as retry_dead_letters() finds them: their events will not be delivered again.
CREATE OR REPLACE FUNCTION inorder.discard_dead_letters(
    consumer text DEFAULT NULL, instance text DEFAULT NULL, event_type text DEFAULT NULL, reason text DEFAULT NULL, error text DEFAULT NULL,
    from_id bigint DEFAULT NULL, to_id bigint DEFAULT NULL, state text DEFAULT 'open',
    max_letters int DEFAULT 100, stop_at timestamptz DEFAULT NULL, "by" text DEFAULT session_user, why text DEFAULT NULL
)
RETURNS TABLE (letters bigint[], left_out bigint, more boolean)
LANGUAGE sql
VOLATILE
SET search_path = pg_catalog, pg_temp
AS $body$
    SELECT *
    FROM inorder.admin_settle_letters(
        'discard_dead_letters', consumer, instance, event_type, reason, error, from_id, to_id, state, max_letters, stop_at, "by", why
    )
$body$;
