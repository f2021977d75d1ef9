-- Receiving: messages from outside become events once, however often and by however many they are delivered, and the queued
-- consumers that want them are to handle them once. The one implementation, for Rust, for psql and for every other language.

-- The UUIDv5 of a name in a namespace (RFC 9562): PostgreSQL brings no SHA-1 without an extension.
CREATE OR REPLACE FUNCTION inorder.uuid_v5(namespace uuid, name text)
RETURNS uuid
LANGUAGE plpgsql
IMMUTABLE STRICT
AS $body$
DECLARE
    message bytea := uuid_send(namespace) || convert_to(name, 'UTF8');
    word    CONSTANT bigint := 4294967295;
    h0      bigint := 1732584193;
    h1      bigint := 4023233417;
    h2      bigint := 2562383102;
    h3      bigint := 271733878;
    h4      bigint := 3285377520;
    a       bigint;
    b       bigint;
    c       bigint;
    d       bigint;
    e       bigint;
    x       bigint;
    w       bigint[];
    digest  bytea;
BEGIN
    message := message || '\x80'::bytea || decode(repeat('00', (119 - length(message) % 64) % 64), 'hex')
        || int8send(length(message)::bigint * 8);
    FOR block IN 0 .. length(message) / 64 - 1 LOOP
        FOR t IN 0 .. 15 LOOP
            x := block * 64 + t * 4;
            w[t] := (get_byte(message, x::int)::bigint << 24) | (get_byte(message, x::int + 1) << 16)
                | (get_byte(message, x::int + 2) << 8) | get_byte(message, x::int + 3);
        END LOOP;
        FOR t IN 16 .. 79 LOOP
            x := w[t - 3] # w[t - 8] # w[t - 14] # w[t - 16];
            w[t] := ((x << 1) | (x >> 31)) & word;
        END LOOP;
        a := h0;
        b := h1;
        c := h2;
        d := h3;
        e := h4;
        FOR t IN 0 .. 79 LOOP
            x := (((a << 5) | (a >> 27)) & word) + e + w[t] + CASE
                WHEN t < 20 THEN ((b & c) | ((b # word) & d)) + 1518500249
                WHEN t < 40 THEN (b # c # d) + 1859775393
                WHEN t < 60 THEN ((b & c) | (b & d) | (c & d)) + 2400959708
                ELSE (b # c # d) + 3395469782
            END;
            e := d;
            d := c;
            c := ((b << 30) | (b >> 2)) & word;
            b := a;
            a := x & word;
        END LOOP;
        h0 := (h0 + a) & word;
        h1 := (h1 + b) & word;
        h2 := (h2 + c) & word;
        h3 := (h3 + d) & word;
        h4 := (h4 + e) & word;
    END LOOP;
    digest := int8send((h0 << 32) | h1) || int8send((h2 << 32) | h3);
    digest := set_byte(digest, 6, get_byte(digest, 6) & 15 | 80);
    digest := set_byte(digest, 8, get_byte(digest, 8) & 63 | 128);
    RETURN encode(digest, 'hex')::uuid;
END
$body$;

-- The event_id of a message: the UUIDv5 of its external id in a namespace that is itself the UUIDv5 of its source, in ours.
CREATE OR REPLACE FUNCTION inorder.inbound_event_id(source text, external_id text)
RETURNS uuid
LANGUAGE sql
IMMUTABLE STRICT
AS $body$
    SELECT inorder.uuid_v5(inorder.uuid_v5('696e6f72-6465-7200-8000-696e626f756e', $1), $2)
$body$;

-- What the rows of a stream wait for each other by, in the ledger; NULL for an event without a stream.
CREATE OR REPLACE FUNCTION inorder.ledger_stream(tenant_id text, stream_type text, stream_id text)
RETURNS text
LANGUAGE sql
IMMUTABLE
AS $body$
    SELECT coalesce($1, '') || '/' || $2 || '/' || $3
$body$;

-- Records that a queued consumer, in each of its instances, is to handle events of the log: usually those that the transaction has
-- appended. It handles them as soon as they are committed, wherever its position is, and no second time when that comes to them.
-- An event that is there already stays as it is. Which types the consumer wants does not matter here.
--   recorded  how many rows are new
--   handlers  whose rows
--   refusal   why nothing was recorded, in words
-- Instances that are disabled or expired are left to their positions.
--
-- SECURITY DEFINER: a producer needs no right to read the log.
CREATE OR REPLACE FUNCTION inorder.record_pending(
    consumer text,
    ids      bigint[],
    OUT recorded int,
    OUT handlers text[],
    OUT refusal  text
)
LANGUAGE plpgsql
VOLATILE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $body$
DECLARE
    missing bigint;
BEGIN
    SELECT given.id INTO missing
    FROM unnest(ids) AS given (id)
    WHERE NOT EXISTS (SELECT FROM inorder.events AS e WHERE e.id = given.id)
    LIMIT 1;
    IF FOUND THEN
        refusal := format('there is no event %s; record what the transaction has appended, by the ids of its answer', missing);
        RETURN;
    END IF;
    PERFORM FROM inorder.consumers AS c WHERE c.name = record_pending.consumer AND c.kind = 'queued';
    IF NOT FOUND THEN
        refusal := format('no queued consumer %L is registered; start the application that runs it first', consumer);
        RETURN;
    END IF;
    SELECT format('event %s lies at or below the floor of %L, where what was done is forgotten; the effect could repeat',
        min(given.id), f.handler)
    INTO refusal
    FROM inorder.consumers AS c
    JOIN inorder.ledger_floors AS f ON f.handler = inorder.ledger_handler(c.name, c.instance)
    JOIN unnest(ids) AS given (id) ON given.id <= f.floor
    WHERE c.name = record_pending.consumer AND c.kind = 'queued' AND c.partition = 0
    GROUP BY f.handler
    LIMIT 1;
    IF FOUND THEN
        RETURN;
    END IF;
    WITH written AS (
        INSERT INTO inorder.ledger AS l (event_id, handler, status, position, stream)
        SELECT e.event_id, inorder.ledger_handler(c.name, c.instance), 'pending', e.id,
            inorder.ledger_stream(e.tenant_id, e.stream_type, e.stream_id)
        FROM inorder.events AS e
        CROSS JOIN inorder.consumers AS c
        WHERE e.id = ANY (ids)
            AND c.name = record_pending.consumer AND c.kind = 'queued' AND c.partition = 0
            AND c.status NOT IN ('disabled', 'expired')
        ORDER BY e.event_id
        ON CONFLICT ON CONSTRAINT ledger_pkey DO NOTHING
        RETURNING l.handler
    )
    SELECT count(*), array_agg(DISTINCT w.handler) INTO recorded, handlers FROM written AS w;
END
$body$;

-- Which messages of a batch are events already, and have the same content.
CREATE OR REPLACE FUNCTION inorder.receive_known(
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
    OUT ids  bigint[],
    OUT same boolean[]
)
LANGUAGE plpgsql
VOLATILE
SET enable_seqscan = off
AS $body$
BEGIN
    SELECT array_agg(e.id ORDER BY e.ord), array_agg(e.same ORDER BY e.ord)
    INTO ids, same
    FROM inorder.append_found(event_ids, event_types, payloads, metadata, stream_types, stream_ids, tenant_ids,
        schema_versions, correlation_ids, causation_ids) AS e;
END
$body$;

-- Receives messages, in the caller's transaction: those that are new are appended, in the order given, and recorded for every queued
-- consumer that wants them, as record_pending does. An answer for each:
--   new        it is an event now
--   duplicate  it had been received, with the same content; nothing was done
--   mismatch   it had been received with other content; nothing was done
-- `ids` are those of the events, `handlers` those that have something to do, `refusal` says in words why nothing was done.
-- Raises only 40001 (try the transaction again), when others received some of the messages in between.
--
-- Batches of one source wait for each other until the end of their transactions: they may bring the same messages in different
-- orders, and would wait for each other crosswise. The lock is an advisory one of the class that is the oid of the ledger.
--
-- All arrays are of one length, or NULL where no message has such a thing; event_ids NULL: derived here.
--
-- SECURITY DEFINER: a producer needs no right to read the log.
CREATE OR REPLACE FUNCTION inorder.receive_events(
    source          text,
    external_ids    text[],
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
    OUT outcomes text[],
    OUT ids      bigint[],
    OUT handlers text[],
    OUT refusal  text
)
LANGUAGE plpgsql
VOLATILE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $body$
#variable_conflict use_column
DECLARE
    n      CONSTANT int := coalesce(cardinality(external_ids), 0);
    -- Which of the messages are to be appended, by their places.
    fresh   int[];
    known   record;
    outcome text;
    new_ids bigint[];
    old_id  bigint;
    reason  text;
BEGIN
    refusal := CASE
        WHEN source IS NULL OR source = '' THEN 'source is empty'
        WHEN octet_length(source) > 200 THEN format('source has %s bytes; at most 200', octet_length(source))
        WHEN event_ids IS NULL THEN NULL
        WHEN n <> cardinality(event_ids) OR n <> coalesce(array_upper(external_ids, 1), n) THEN
            format('arrays that differ: each must have %s elements, from 1, as external_ids has, or be NULL', n)
    END;
    IF refusal IS NULL THEN
        SELECT format('message %s of %s: external_id %s', x.ord, n, CASE
            WHEN coalesce(x.external_id, '') = '' THEN 'is empty'
            ELSE format('has %s bytes; at most 2000', octet_length(x.external_id))
        END)
        INTO refusal
        FROM unnest(external_ids) WITH ORDINALITY AS x (external_id, ord)
        WHERE coalesce(x.external_id, '') = '' OR octet_length(x.external_id) > 2000
        ORDER BY x.ord
        LIMIT 1;
    END IF;
    IF refusal IS NOT NULL THEN
        RETURN;
    END IF;
    IF event_ids IS NULL THEN
        SELECT array_agg(inorder.inbound_event_id(source, x.external_id) ORDER BY x.ord) INTO event_ids
        FROM unnest(external_ids) WITH ORDINALITY AS x (external_id, ord);
    END IF;
    IF created_by IS NULL THEN
        created_by := array_fill(source, ARRAY[n]);
    END IF;

    IF n = 1 THEN
        SELECT a.outcome, a.ids, a.mismatch_id, a.refusal INTO outcome, new_ids, old_id, reason
        FROM inorder.append_events(NULL, event_ids, event_types, payloads, metadata, stream_types, stream_ids,
            tenant_ids, schema_versions, correlation_ids, causation_ids, created_by, max_bytes) AS a;
        fresh := CASE outcome WHEN 'appended' THEN ARRAY[1] END;
        outcomes := ARRAY[CASE outcome WHEN 'appended' THEN 'new' WHEN 'already_appended' THEN 'duplicate' ELSE outcome END];
        ids := coalesce(new_ids, ARRAY[old_id]);
    ELSE
        PERFORM pg_advisory_xact_lock('inorder.ledger'::regclass::oid::int, hashtext(source));
        -- Again when somebody received one of them by itself after we had looked.
        FOR attempt IN 1..5 LOOP
            known := inorder.receive_known(event_ids, event_types, payloads, metadata, stream_types, stream_ids, tenant_ids,
                schema_versions, correlation_ids, causation_ids);
            -- What a batch brings twice is received once.
            SELECT array_agg(m.ord ORDER BY m.ord) INTO fresh
            FROM (
                SELECT min(m.ord)::int AS ord
                FROM unnest(event_ids, known.ids) WITH ORDINALITY AS m (event_id, id, ord)
                WHERE m.id IS NULL
                GROUP BY m.event_id
            ) AS m;
            EXIT WHEN fresh IS NULL AND n > 0; -- an empty batch is refused
            SELECT a.outcome, a.ids, a.refusal INTO outcome, new_ids, reason
            FROM (
                SELECT array_agg(event_ids[m.at] ORDER BY m.at) AS event_ids,
                    array_agg(event_types[m.at] ORDER BY m.at) AS event_types,
                    array_agg(payloads[m.at] ORDER BY m.at) AS payloads,
                    array_agg(metadata[m.at] ORDER BY m.at) FILTER (WHERE metadata IS NOT NULL) AS metadata,
                    array_agg(stream_types[m.at] ORDER BY m.at) FILTER (WHERE stream_types IS NOT NULL) AS stream_types,
                    array_agg(stream_ids[m.at] ORDER BY m.at) FILTER (WHERE stream_ids IS NOT NULL) AS stream_ids,
                    array_agg(tenant_ids[m.at] ORDER BY m.at) FILTER (WHERE tenant_ids IS NOT NULL) AS tenant_ids,
                    array_agg(schema_versions[m.at] ORDER BY m.at) FILTER (WHERE schema_versions IS NOT NULL) AS schema_versions,
                    array_agg(correlation_ids[m.at] ORDER BY m.at) FILTER (WHERE correlation_ids IS NOT NULL) AS correlation_ids,
                    array_agg(causation_ids[m.at] ORDER BY m.at) FILTER (WHERE causation_ids IS NOT NULL) AS causation_ids,
                    array_agg(created_by[m.at] ORDER BY m.at) AS created_by
                FROM unnest(fresh) AS m (at)
            ) AS f
            CROSS JOIN LATERAL inorder.append_events(NULL, f.event_ids, f.event_types, f.payloads, f.metadata, f.stream_types,
                f.stream_ids, f.tenant_ids, f.schema_versions, f.correlation_ids, f.causation_ids, f.created_by, max_bytes) AS a;
            EXIT WHEN outcome IN ('appended', 'refused');
            IF outcome = 'completed' OR attempt = 5 THEN
                RAISE EXCEPTION 'receiving % messages: another transaction received some of them meanwhile', n
                    USING ERRCODE = 'serialization_failure', HINT = 'roll back and try the transaction again';
            END IF;
        END LOOP;
        -- What the batch brings twice is compared with what was appended.
        IF outcome = 'appended' AND cardinality(fresh) + cardinality(array_remove(known.ids, NULL)) < n THEN
            known := inorder.receive_known(event_ids, event_types, payloads, metadata, stream_types, stream_ids, tenant_ids,
                schema_versions, correlation_ids, causation_ids);
        END IF;
        ids := known.ids;
        SELECT array_agg(CASE WHEN m.same THEN 'duplicate' ELSE 'mismatch' END ORDER BY m.ord) INTO outcomes
        FROM unnest(known.same) WITH ORDINALITY AS m (same, ord);
        FOR i IN 1 .. coalesce(cardinality(fresh), 0) LOOP
            ids[fresh[i]] := new_ids[i];
            outcomes[fresh[i]] := 'new';
        END LOOP;
    END IF;
    IF reason IS NOT NULL THEN
        outcomes := NULL;
        ids := NULL;
        SELECT format('external id %L: %s', external_ids[m.ord], reason) INTO refusal
        FROM unnest(event_ids) WITH ORDINALITY AS m (event_id, ord)
        WHERE position(m.event_id::text IN reason) > 0
        LIMIT 1;
        refusal := coalesce(refusal, reason);
        RETURN;
    END IF;

    IF fresh IS NOT NULL THEN
        WITH written AS (
            INSERT INTO inorder.ledger AS l (event_id, handler, status, position, stream)
            SELECT event_ids[m.at], inorder.ledger_handler(c.name, c.instance), 'pending', ids[m.at],
                inorder.ledger_stream(tenant_ids[m.at], stream_types[m.at], stream_ids[m.at])
            FROM unnest(fresh) AS m (at)
            CROSS JOIN inorder.consumers AS c
            WHERE c.kind = 'queued' AND c.partition = 0 AND c.status NOT IN ('disabled', 'expired')
                AND (c.event_types IS NULL OR receive_events.event_types[m.at] = ANY (c.event_types))
            ORDER BY event_ids[m.at]
            ON CONFLICT ON CONSTRAINT ledger_pkey DO NOTHING
            RETURNING l.handler
        )
        SELECT array_agg(DISTINCT w.handler) INTO handlers FROM written AS w;
    END IF;
END
$body$;

-- Receives one message, in the caller's transaction, for psql and every language:
--   SELECT * FROM inorder.receive('usgs', 'ci37868143', 'quake.reported', '{"mag": 2}');
--   outcome   new, duplicate, or mismatch
--   id        of the event
--   event_id  of the event, derived from source and external id
-- Raises IO002 for input that the log does not take.
CREATE OR REPLACE FUNCTION inorder.receive(
    source         text,
    external_id    text,
    event_type     text,
    payload        json,
    stream_type    text DEFAULT NULL,
    stream_id      text DEFAULT NULL,
    tenant_id      text DEFAULT '',
    schema_version int  DEFAULT 1,
    metadata       json DEFAULT '{}',
    correlation_id uuid DEFAULT NULL,
    causation_id   uuid DEFAULT NULL,
    created_by     text DEFAULT NULL,
    OUT outcome  text,
    OUT id       bigint,
    OUT event_id uuid
)
LANGUAGE plpgsql
VOLATILE
AS $body$
DECLARE
    answer record;
BEGIN
    event_id := inorder.inbound_event_id(source, external_id);
    answer := inorder.receive_events(
        source, ARRAY[external_id], ARRAY[event_id], ARRAY[event_type], ARRAY[payload::text], ARRAY[metadata::text],
        ARRAY[stream_type], ARRAY[stream_id], ARRAY[tenant_id], ARRAY[schema_version], ARRAY[correlation_id],
        ARRAY[causation_id], ARRAY[coalesce(created_by, source)]);
    IF answer.refusal IS NOT NULL THEN
        RAISE EXCEPTION 'receive refused: %', answer.refusal
            USING ERRCODE = 'IO002', HINT = 'nothing was received; correct the input';
    END IF;
    outcome := answer.outcomes[1];
    id := answer.ids[1];
END
$body$;

-- Whoever may use the schema must not be able to append for that alone.
REVOKE EXECUTE ON FUNCTION inorder.record_pending FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION inorder.receive_events FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION inorder.receive FROM PUBLIC;
