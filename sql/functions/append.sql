-- Appending: the one implementation, for Rust, for psql and for every other language.

-- The lock that serialises the writers of one stream, held to the end of the transaction: an advisory lock of the class
-- that is the oid of the log, in one of 1,024 buckets, so that no batch exhausts the lock table. Who takes several takes
-- them in ascending order.
CREATE OR REPLACE FUNCTION inorder.stream_bucket(tenant_id text, stream_type text, stream_id text)
RETURNS int
LANGUAGE sql
IMMUTABLE
AS $body$
    SELECT hashtext(coalesce(tenant_id, '') || '/' || stream_type || '/' || stream_id) & 1023
$body$;

-- The version of a stream, 0 where it has no event. Called after the lock: VOLATILE, so that under READ COMMITTED it sees
-- what the lock's last holder wrote. enable_seqscan: a session keeps the plan that it made while the log was small.
CREATE OR REPLACE FUNCTION inorder.stream_head(of_tenant text, of_type text, of_id text)
RETURNS bigint
LANGUAGE plpgsql
VOLATILE
SET enable_seqscan = off
AS $body$
BEGIN
    RETURN coalesce((
        SELECT e.stream_version
        FROM inorder.events AS e
        WHERE e.tenant_id = coalesce(of_tenant, '') AND e.stream_type = of_type AND e.stream_id = of_id
        ORDER BY e.stream_version DESC
        LIMIT 1
    ), 0);
END
$body$;

-- The same for the stream of each event of a batch; NULL for an event without one.
CREATE OR REPLACE FUNCTION inorder.stream_heads(tenant_ids text[], stream_types text[], stream_ids text[])
RETURNS bigint[]
LANGUAGE plpgsql
VOLATILE
SET enable_seqscan = off
AS $body$
BEGIN
    RETURN (
        WITH given AS MATERIALIZED (
            SELECT coalesce(g.tenant_id, '') AS tenant_id, g.stream_type, g.stream_id, g.ord
            FROM unnest(tenant_ids, stream_types, stream_ids)
                WITH ORDINALITY AS g (tenant_id, stream_type, stream_id, ord)
        ),
        heads AS MATERIALIZED (
            SELECT s.*, coalesce(e.stream_version, 0) AS stream_version
            FROM (SELECT DISTINCT g.tenant_id, g.stream_type, g.stream_id FROM given AS g) AS s
            LEFT JOIN LATERAL (
                SELECT e.stream_version
                FROM inorder.events AS e
                WHERE e.tenant_id = s.tenant_id AND e.stream_type = s.stream_type AND e.stream_id = s.stream_id
                ORDER BY e.stream_version DESC
                LIMIT 1
            ) AS e ON true
        )
        SELECT array_agg(h.stream_version ORDER BY g.ord)
        FROM given AS g
        LEFT JOIN heads AS h USING (tenant_id, stream_type, stream_id)
    );
END
$body$;

-- Which events of a batch are in the log, in the order given: id and version, NULL where they are not, and whether they have
-- the same content. A version is a place, not content. STABLE, so that it becomes part of the statement that asks.
CREATE OR REPLACE FUNCTION inorder.append_found(
    event_ids       uuid[],
    event_types     text[],
    payloads        text[],
    metadata        text[],
    stream_types    text[],
    stream_ids      text[],
    tenant_ids      text[],
    schema_versions int[],
    correlation_ids uuid[],
    causation_ids   uuid[]
)
RETURNS TABLE (ord bigint, event_id uuid, id bigint, stream_version bigint, same boolean)
LANGUAGE sql
STABLE
AS $body$
    SELECT given.ord, given.event_id, e.id, e.stream_version, e.same
    FROM unnest(event_ids, event_types, payloads, metadata, stream_types, stream_ids, tenant_ids, schema_versions,
            correlation_ids, causation_ids)
        WITH ORDINALITY AS given (event_id, event_type, payload, metadata, stream_type, stream_id, tenant_id,
            schema_version, correlation_id, causation_id, ord)
    LEFT JOIN LATERAL (
        SELECT e.id, e.stream_version,
            (e.event_type, e.payload::text, e.metadata::text, e.tenant_id, e.schema_version)
                = (given.event_type, given.payload, coalesce(given.metadata, '{}'), coalesce(given.tenant_id, ''),
                    coalesce(given.schema_version, 1))
            AND (e.stream_type, e.stream_id, e.correlation_id, e.causation_id)
                IS NOT DISTINCT FROM
                (given.stream_type, given.stream_id, given.correlation_id, given.causation_id) AS same
        FROM inorder.events AS e
        WHERE e.event_id = given.event_id
        LIMIT 1
    ) AS e ON true
$body$;

-- The same in one row: their ids, how many there are, and the first that has other content.
CREATE OR REPLACE FUNCTION inorder.append_known(
    event_ids       uuid[],
    event_types     text[],
    payloads        text[],
    metadata        text[],
    stream_types    text[],
    stream_ids      text[],
    tenant_ids      text[],
    schema_versions int[],
    correlation_ids uuid[],
    causation_ids   uuid[],
    OUT ids               bigint[],
    OUT already           int,
    OUT mismatch_event_id uuid,
    OUT mismatch_id       bigint,
    OUT last_version      bigint
)
LANGUAGE plpgsql
VOLATILE
SET enable_seqscan = off
AS $body$
#variable_conflict use_column
BEGIN
    SELECT array_agg(e.id ORDER BY e.ord),
        count(e.id),
        (array_agg(e.event_id ORDER BY e.ord) FILTER (WHERE NOT e.same))[1],
        (array_agg(e.id ORDER BY e.ord) FILTER (WHERE NOT e.same))[1],
        max(e.stream_version)
    INTO ids, already, mismatch_event_id, mismatch_id, last_version
    FROM inorder.append_found(event_ids, event_types, payloads, metadata, stream_types, stream_ids, tenant_ids,
        schema_versions, correlation_ids, causation_ids) AS e;
END
$body$;

-- Appends a batch, all or nothing, in the caller's transaction. What became of it is a value; the transaction goes on:
--   appended          ids
--   already_appended  ids: every event_id was there, with the same content
--   completed         ids, already: some were there, with the same content; the others were appended
--   conflict          actual: the version of the stream, which is not the expected one; nothing was appended
--   mismatch          mismatch_event_id, mismatch_id: this event_id is there with other content; nothing was appended
--   refused           refusal: input that the log does not take, in words; nothing was appended
-- `actual` is the version of the event where the batch is one event, appended or already there.
-- Raises only 40001 (try the transaction again), when others wrote the same events or streams in between.
--
-- expected: NULL whatever it is, 0 no event yet, -1 at least one event, n the last event has version n.
-- All arrays are of one length, or NULL where no event has such a thing.
--
-- SECURITY DEFINER: a producer needs no right to read the log.
CREATE OR REPLACE FUNCTION inorder.append_events(
    expected        bigint,
    event_ids       uuid[],
    event_types     text[],
    payloads        text[],
    metadata        text[] DEFAULT NULL,
    stream_types    text[] DEFAULT NULL,
    stream_ids      text[] DEFAULT NULL,
    tenant_ids      text[] DEFAULT NULL,
    schema_versions int[]  DEFAULT NULL,
    correlation_ids uuid[] DEFAULT NULL,
    causation_ids   uuid[] DEFAULT NULL,
    created_by      text[] DEFAULT NULL,
    max_bytes       int    DEFAULT 1048576,
    OUT outcome           text,
    OUT ids               bigint[],
    OUT already           int,
    OUT actual            bigint,
    OUT mismatch_event_id uuid,
    OUT mismatch_id       bigint,
    OUT refusal           text
)
LANGUAGE plpgsql
VOLATILE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $body$
#variable_conflict use_column
DECLARE
    n         CONSTANT int := coalesce(cardinality(event_ids), 0);
    log_class CONSTANT int := 'inorder.events'::regclass::oid::int;
    heads     bigint[];
    new_id    bigint;
    new_ids   bigint[];
    next      int := 1;
BEGIN
    refusal := inorder.append_refusal(expected, event_ids, event_types, payloads, metadata, stream_types, stream_ids,
        tenant_ids, schema_versions, correlation_ids, causation_ids, created_by, max_bytes);
    IF refusal IS NOT NULL THEN
        outcome := 'refused';
        RETURN;
    END IF;

    IF n = 1 THEN
        IF stream_ids[1] IS NOT NULL THEN
            PERFORM pg_advisory_xact_lock(log_class, inorder.stream_bucket(tenant_ids[1], stream_types[1], stream_ids[1]));
        END IF;
    ELSIF stream_ids IS NOT NULL THEN
        PERFORM pg_advisory_xact_lock(log_class, b.bucket)
        FROM (
            SELECT DISTINCT inorder.stream_bucket(s.tenant_id, s.stream_type, s.stream_id) AS bucket
            FROM unnest(tenant_ids, stream_types, stream_ids) AS s (tenant_id, stream_type, stream_id)
            WHERE s.stream_id IS NOT NULL
            ORDER BY bucket
        ) AS b;
    END IF;

    -- Again when another transaction wrote one of the events, or a raw INSERT a version, after we had looked.
    FOR attempt IN 1..5 LOOP
        -- One event is tried first and looked up afterwards: it leaves nothing behind when it is there already.
        IF n > 1 OR attempt > 1 THEN
            SELECT k.ids, k.already, k.mismatch_event_id, k.mismatch_id, CASE n WHEN 1 THEN k.last_version END
            INTO ids, already, mismatch_event_id, mismatch_id, actual
            FROM inorder.append_known(event_ids, event_types, payloads, metadata, stream_types, stream_ids, tenant_ids,
                schema_versions, correlation_ids, causation_ids) AS k;
            IF mismatch_id IS NOT NULL THEN
                outcome := 'mismatch';
                ids := NULL;
                actual := NULL;
                RETURN;
            ELSIF already = n THEN
                outcome := 'already_appended';
                RETURN;
            END IF;
        ELSE
            already := 0;
        END IF;

        -- A statement of its own after the lock: under READ COMMITTED it sees what the lock's last holder wrote.
        IF stream_ids[1] IS NOT NULL AND (n = 1 OR expected IS NOT NULL) THEN
            actual := inorder.stream_head(tenant_ids[1], stream_types[1], stream_ids[1]);
            IF (expected = -1 AND actual = 0) OR (expected >= 0 AND actual <> expected) THEN
                IF n = 1 AND attempt = 1 THEN
                    -- It may be there already, and the stream have moved on.
                    CONTINUE;
                END IF;
                outcome := 'conflict';
                ids := NULL;
                already := NULL;
                RETURN;
            END IF;
        END IF;

        IF n = 1 THEN
            INSERT INTO inorder.events (
                event_id, tenant_id, stream_type, stream_id, stream_version, event_type, schema_version,
                payload, metadata, correlation_id, causation_id, created_by
            ) VALUES (
                event_ids[1], coalesce(tenant_ids[1], ''), stream_types[1], stream_ids[1], actual + 1, event_types[1],
                coalesce(schema_versions[1], 1), payloads[1]::json, coalesce(metadata[1], '{}')::json,
                correlation_ids[1], causation_ids[1], created_by[1]
            )
            ON CONFLICT DO NOTHING
            RETURNING id INTO new_id;
            IF new_id IS NOT NULL THEN
                outcome := 'appended';
                ids := ARRAY[new_id];
                actual := actual + 1;
                RETURN;
            END IF;
        ELSE
            IF stream_ids IS NOT NULL THEN
                heads := inorder.stream_heads(tenant_ids, stream_types, stream_ids);
            END IF;
            WITH written AS (
                INSERT INTO inorder.events (
                    event_id, tenant_id, stream_type, stream_id, stream_version, event_type, schema_version,
                    payload, metadata, correlation_id, causation_id, created_by
                )
                SELECT g.event_id, coalesce(g.tenant_id, ''), g.stream_type, g.stream_id,
                    g.head + row_number() OVER (
                        PARTITION BY coalesce(g.tenant_id, ''), g.stream_type, g.stream_id
                        ORDER BY g.ord
                    ),
                    g.event_type, coalesce(g.schema_version, 1), g.payload::json, coalesce(g.metadata, '{}')::json,
                    g.correlation_id, g.causation_id, g.created_by
                FROM unnest(event_ids, event_types, payloads, metadata, stream_types, stream_ids, tenant_ids,
                        schema_versions, correlation_ids, causation_ids, created_by, ids, heads)
                    WITH ORDINALITY AS g (event_id, event_type, payload, metadata, stream_type, stream_id, tenant_id,
                        schema_version, correlation_id, causation_id, created_by, known_id, head, ord)
                WHERE g.known_id IS NULL
                ORDER BY g.ord
                ON CONFLICT DO NOTHING
                RETURNING id
            )
            SELECT array_agg(w.id ORDER BY w.id) INTO new_ids FROM written AS w;
            IF already + coalesce(cardinality(new_ids), 0) = n THEN
                outcome := CASE already WHEN 0 THEN 'appended' ELSE 'completed' END;
                IF already = 0 THEN
                    ids := new_ids;
                ELSE
                    FOR i IN 1..n LOOP
                        IF ids[i] IS NULL THEN
                            ids[i] := new_ids[next];
                            next := next + 1;
                        END IF;
                    END LOOP;
                END IF;
                actual := NULL;
                RETURN;
            END IF;
            EXIT WHEN new_ids IS NOT NULL;
        END IF;
    END LOOP;

    RAISE EXCEPTION 'append of % events: another transaction wrote some of them, or versions of their streams, meanwhile', n
        USING ERRCODE = 'serialization_failure', HINT = 'roll back and try the transaction again';
END
$body$;

-- Appends one event, in the caller's transaction, for psql and every language:
--   SELECT * FROM inorder.append('order.placed', '{"id": 42}', stream_type => 'order', stream_id => '42');
--   outcome         appended, already_appended, conflict, or mismatch
--   id              of the event; of the event that has the event_id where there is a mismatch
--   event_id        of the event
--   stream_version  of the event where it is in a stream; of the stream where there is a conflict
-- Raises IO002 for input that the log does not take.
--
-- expected_version: NULL whatever it is, 0 no event yet, -1 at least one event, n the last event has version n.
CREATE OR REPLACE FUNCTION inorder.append(
    event_type       text,
    payload          json,
    stream_type      text    DEFAULT NULL,
    stream_id        text    DEFAULT NULL,
    expected_version bigint  DEFAULT NULL,
    INOUT event_id   uuid    DEFAULT gen_random_uuid(),
    tenant_id        text    DEFAULT '',
    schema_version   int     DEFAULT 1,
    metadata         json    DEFAULT '{}',
    correlation_id   uuid    DEFAULT NULL,
    causation_id     uuid    DEFAULT NULL,
    created_by       text    DEFAULT NULL,
    OUT outcome        text,
    OUT id             bigint,
    OUT stream_version bigint
)
LANGUAGE plpgsql
VOLATILE
AS $body$
DECLARE
    answer record;
BEGIN
    event_id := coalesce(event_id, gen_random_uuid());
    answer := inorder.append_events(
        expected_version, ARRAY[event_id], ARRAY[event_type], ARRAY[payload::text], ARRAY[metadata::text],
        ARRAY[stream_type], ARRAY[stream_id], ARRAY[tenant_id], ARRAY[schema_version], ARRAY[correlation_id],
        ARRAY[causation_id], ARRAY[created_by]);
    IF answer.refusal IS NOT NULL THEN
        RAISE EXCEPTION 'append refused: %', answer.refusal
            USING ERRCODE = 'IO002', HINT = 'nothing was appended; correct the input';
    END IF;
    outcome := answer.outcome;
    id := coalesce(answer.ids[1], answer.mismatch_id);
    stream_version := answer.actual;
END
$body$;

-- Whoever may use the schema must not be able to append for that alone.
REVOKE EXECUTE ON FUNCTION inorder.append_events FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION inorder.append FROM PUBLIC;
