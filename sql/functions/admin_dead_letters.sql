-- What was passed over, oldest first: of one consumer or of all, in one state or (NULL) in any. `after_id` continues a list.
CREATE OR REPLACE FUNCTION inorder.dead_letters(
    consumer text DEFAULT NULL, state text DEFAULT 'open', max_rows int DEFAULT 100, after_id bigint DEFAULT 0
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
    FROM inorder.dead_letters AS d
    WHERE (dead_letters.consumer IS NULL OR d.consumer = dead_letters.consumer)
        AND (dead_letters.state IS NULL OR d.state = dead_letters.state)
        AND d.id > after_id
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
    END IF;
    IF refusal IS NOT NULL THEN
        RAISE EXCEPTION 'cannot retry dead letter %: %', letter_id, refusal USING ERRCODE = 'IO004', HINT = way_out;
    END IF;
    PERFORM inorder.admin_known(was.consumer, was.instance, was.partition);
    -- A queue has no pass that delivers it: its row in the ledger begins anew.
    UPDATE inorder.ledger AS l
    SET status = 'pending', attempts = 0, faults = 0, next_attempt_at = NULL, updated_at = clock_timestamp()
    WHERE l.event_id = was.event_id AND l.handler = inorder.ledger_handler(was.consumer, was.instance) AND l.status = 'dead'
        AND EXISTS (
            SELECT FROM inorder.consumers AS c
            WHERE c.name = was.consumer AND c.instance = was.instance AND c.kind = 'queued'
        );
    UPDATE inorder.dead_letters AS d
    SET state = 'retry_requested', updated_at = clock_timestamp(), updated_by = coalesce(nullif(retry_dead_letter.by, ''), session_user)
    WHERE d.id = letter_id
    RETURNING * INTO now;
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
    UPDATE inorder.dead_letters AS d
    SET state = 'discarded', updated_at = clock_timestamp(), updated_by = coalesce(nullif(discard_dead_letter.by, ''), session_user)
    WHERE d.id = letter_id
    RETURNING * INTO now;
    RETURN NEXT inorder.admin_record('discard_dead_letter', discard_dead_letter.by, why, was.consumer, was.instance, was.partition, to_jsonb(was), to_jsonb(now));
END
$body$;
