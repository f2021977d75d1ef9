-- What the log takes. Cheap tests come first; the slow walk that names the place runs only when there is something to name.

-- Does a JSON number have a value that neither i64, u64 (integers) nor f64 (all others) can hold?
CREATE OR REPLACE FUNCTION inorder.json_number_outside(number text)
RETURNS boolean
LANGUAGE plpgsql
IMMUTABLE STRICT
AS $body$
DECLARE
    parts    text[];
    digits   text;
    exponent text;
    power    bigint;
BEGIN
    IF number ~ '^-?[0-9]+$' THEN
        RETURN length(number) > 20
            OR number::numeric NOT BETWEEN -9223372036854775808 AND 18446744073709551615;
    END IF;
    parts := regexp_match(number, '^-?([0-9]+)(?:[.]([0-9]+))?(?:[eE]([-+]?)0*([0-9]*))?$');
    digits := ltrim(parts[1] || coalesce(parts[2], ''), '0');
    exponent := coalesce(nullif(parts[4], ''), '0');
    IF digits = '' OR (parts[3] = '-' AND length(exponent) > 9) THEN
        RETURN false;
    ELSIF length(exponent) > 9 THEN
        RETURN true;
    END IF;
    -- The power of ten of the first digit that is not 0.
    power := length(digits) - coalesce(length(parts[2]), 0) - 1
        + CASE WHEN parts[3] = '-' THEN - exponent::bigint ELSE exponent::bigint END;
    RETURN power > 308 OR (power = 308 AND left(digits, 17) > '17976931348623157');
END
$body$;

-- The first thing in a JSON text that the log does not take, with its path. The slow walk: token by token.
CREATE OR REPLACE FUNCTION inorder.json_place(document text)
RETURNS text
LANGUAGE plpgsql
IMMUTABLE STRICT
AS $body$
DECLARE
    token  text;
    depth  int := 0;
    -- By depth: `[` or `{`; the index or key at which the walk stands; whether a key comes next.
    opened text[] := '{}';
    steps  text[] := '{}';
    counts int[] := '{}';
    is_key boolean := false;
    bad    text;
BEGIN
    FOR token IN
        SELECT m[1]
        FROM regexp_matches(document, '"(?:[^"\\]|\\.)*"|-?[0-9][-+.0-9eE]*|[][{},]', 'g') AS m
    LOOP
        IF token IN ('[', '{') THEN
            IF depth = 100 THEN
                RETURN format('nesting over 100 at %s', inorder.json_path(steps, depth));
            END IF;
            depth := depth + 1;
            opened[depth] := token;
            counts[depth] := 0;
            steps[depth] := CASE token WHEN '[' THEN '[0]' ELSE '' END;
            is_key := token = '{';
        ELSIF token IN (']', '}') THEN
            depth := depth - 1;
            is_key := false;
        ELSIF token = ',' THEN
            is_key := opened[depth] = '{';
            counts[depth] := counts[depth] + 1;
            IF NOT is_key THEN
                steps[depth] := format('[%s]', counts[depth]);
            END IF;
        ELSIF token LIKE '"%' THEN
            IF is_key THEN
                steps[depth] := CASE WHEN token ~ '^"[A-Za-z_][A-Za-z_0-9]*"$'
                    THEN '.' || trim(BOTH '"' FROM token)
                    ELSE '[' || token || ']' END;
            END IF;
            bad := inorder.json_bad_escape(token);
            IF bad IS NOT NULL THEN
                RETURN format('%s in the %s at %s: leave it out or encode it otherwise',
                    CASE WHEN bad LIKE '%0000' THEN 'U+0000 (' || bad || ')' ELSE 'the lone surrogate ' || bad END,
                    CASE WHEN is_key THEN 'key' ELSE 'string' END,
                    inorder.json_path(steps, depth));
            END IF;
            is_key := false;
        ELSIF inorder.json_number_outside(token) THEN
            RETURN format('the number %s at %s is outside %s: send it as a string',
                CASE WHEN length(token) > 40 THEN left(token, 40) || '…' ELSE token END,
                inorder.json_path(steps, depth),
                CASE WHEN token ~ '[.eE]' THEN 'f64' ELSE 'i64 and u64' END);
        END IF;
    END LOOP;
    RETURN NULL;
END
$body$;

-- The place at which a walk stands, such as `$.lines[2].price`.
CREATE OR REPLACE FUNCTION inorder.json_path(steps text[], depth int)
RETURNS text
LANGUAGE sql
IMMUTABLE
AS $body$
    SELECT CASE WHEN length(path) > 200 THEN left(path, 200) || '…' ELSE path END
    FROM (SELECT '$' || array_to_string(steps[1:depth], '') AS path) AS whole
$body$;

-- The first escape in a JSON text that stands for no character which text can hold: \u0000, half of a surrogate pair.
CREATE OR REPLACE FUNCTION inorder.json_bad_escape(document text)
RETURNS text
LANGUAGE sql
IMMUTABLE STRICT
AS $body$
    SELECT substring(
        regexp_replace(
            -- An escaped backslash begins no other escape.
            replace(document, '\\', '  '),
            '\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}', '_', 'g'),
        '\\u(?:0000|[dD][89a-fA-F][0-9a-fA-F]{2})')
$body$;

-- How deep a valid JSON text is nested, or 101 when it is over 100. Strings must be empty.
CREATE OR REPLACE FUNCTION inorder.json_depth(bare text)
RETURNS int
LANGUAGE plpgsql
IMMUTABLE STRICT
AS $body$
DECLARE
    brackets text := translate(regexp_replace(bare, '[^][{}]+', '', 'g'), '{}', '[]');
BEGIN
    -- Each round takes the innermost pairs away.
    FOR depth IN 0..100 LOOP
        IF brackets = '' THEN
            RETURN depth;
        END IF;
        brackets := replace(brackets, '[]', '');
    END LOOP;
    RETURN 101;
END
$body$;

-- Why a JSON text is not taken; NULL when it is.
CREATE OR REPLACE FUNCTION inorder.json_refusal(document text)
RETURNS text
LANGUAGE plpgsql
IMMUTABLE STRICT
AS $body$
DECLARE
    -- Without the contents of its strings.
    bare   CONSTANT text := regexp_replace(document, '"(?:[^"\\]|\\.)*"', '""', 'g');
    parsed json;
    detail text;
BEGIN
    BEGIN
        parsed := document::json;
    EXCEPTION
        WHEN data_exception THEN
            GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
            RETURN format('not JSON: %s', coalesce(nullif(detail, ''), SQLERRM));
        WHEN statement_too_complex THEN
            -- Too deep for the parser of the server; the walk says where.
            RETURN inorder.json_place(document);
    END;
    IF inorder.json_bad_escape(document) IS NOT NULL
        OR (bare ~ '[0-9]{19}|[0-9][eE][+]?[0-9]{3}' AND EXISTS (
            SELECT FROM regexp_matches(bare, '-?[0-9][-+.0-9eE]*', 'g') AS number
            WHERE inorder.json_number_outside(number[1])
        ))
        OR inorder.json_depth(bare) > 100
    THEN
        RETURN inorder.json_place(document);
    END IF;
    RETURN NULL;
END
$body$;

-- Why a batch is not taken, in words that name the event; NULL when it is. Reads no table and takes no lock.
CREATE OR REPLACE FUNCTION inorder.append_refusal(
    expected        bigint,
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
    created_by      text[],
    max_bytes       int
)
RETURNS text
LANGUAGE plpgsql
IMMUTABLE
AS $body$
DECLARE
    -- Escapes and numbers that might not be taken; nothing that is not taken passes it.
    suspect CONSTANT text := '\\u(?:0000|[dD][89a-fA-F])|[0-9]{19}|[0-9][eE][+]?[0-9]{3}';
    n       CONSTANT int := coalesce(cardinality(event_ids), 0);
    bytes   bigint := 0;
    valid   boolean := true;
    parsed  json[];
    part    text;
    reason  text;
BEGIN
    IF n = 0 THEN
        RETURN 'nothing to append: the batch is empty';
    ELSIF n > 10000 THEN
        RETURN format('a batch of %s events; at most 10000 go into one append: split it', n);
    ELSIF expected < -1 THEN
        RETURN format('expected version %s; versions begin at 1', expected);
    ELSIF NOT (n = array_upper(event_ids, 1)
        AND n = coalesce(array_upper(event_types, 1), n)
        AND n = coalesce(array_upper(payloads, 1), n)
        AND n = coalesce(array_upper(metadata, 1), n)
        AND n = coalesce(array_upper(stream_types, 1), n)
        AND n = coalesce(array_upper(stream_ids, 1), n)
        AND n = coalesce(array_upper(tenant_ids, 1), n)
        AND n = coalesce(array_upper(schema_versions, 1), n)
        AND n = coalesce(array_upper(correlation_ids, 1), n)
        AND n = coalesce(array_upper(causation_ids, 1), n)
        AND n = coalesce(array_upper(created_by, 1), n))
    THEN
        RETURN format('arrays that differ: each must have %s elements, from 1, as event_ids has, or be NULL', n);
    END IF;
    -- A syntax error is a value, too. The inner block writes nothing, so it costs no transaction id.
    BEGIN
        parsed := payloads::json[];
        parsed := metadata::json[];
    EXCEPTION
        WHEN data_exception OR statement_too_complex THEN
            valid := false;
    END;
    FOR i IN 1..n LOOP
        -- NULL in a condition: it does not hold, or the thing is absent, which is allowed where it is not asked for.
        reason := CASE
            WHEN event_ids[i] IS NULL THEN 'event_id is missing'
            WHEN event_types[i] IS NULL THEN 'event_type is missing'
            WHEN event_types[i] = '' THEN 'event_type is empty'
            WHEN octet_length(event_types[i]) > 200 THEN
                format('event_type has %s bytes; at most 200', octet_length(event_types[i]))
            WHEN stream_types[i] IS NULL AND stream_ids[i] IS NOT NULL THEN 'stream_id without stream_type'
            WHEN stream_ids[i] IS NULL AND stream_types[i] IS NOT NULL THEN 'stream_type without stream_id'
            WHEN stream_types[i] = '' THEN 'stream_type is empty'
            WHEN octet_length(stream_types[i]) > 200 THEN
                format('stream_type has %s bytes; at most 200', octet_length(stream_types[i]))
            WHEN stream_ids[i] = '' THEN 'stream_id is empty'
            WHEN octet_length(stream_ids[i]) > 500 THEN
                format('stream_id has %s bytes; at most 500', octet_length(stream_ids[i]))
            WHEN octet_length(tenant_ids[i]) > 200 THEN
                format('tenant_id has %s bytes; at most 200', octet_length(tenant_ids[i]))
            WHEN octet_length(created_by[i]) > 200 THEN
                format('created_by has %s bytes; at most 200', octet_length(created_by[i]))
            WHEN payloads[i] IS NULL THEN 'payload is missing'
            WHEN octet_length(payloads[i]) > max_bytes THEN
                format('payload has %s bytes; at most %s: keep the large part elsewhere, or raise the limit',
                    octet_length(payloads[i]), max_bytes)
            WHEN octet_length(metadata[i]) > max_bytes THEN
                format('metadata has %s bytes; at most %s: keep the large part elsewhere, or raise the limit',
                    octet_length(metadata[i]), max_bytes)
        END;
        IF reason IS NULL THEN
            bytes := bytes + octet_length(payloads[i]) + coalesce(octet_length(metadata[i]), 0);
            part := payloads[i];
            IF NOT valid OR part ~ suspect OR (octet_length(part) > 201
                AND octet_length(part) - octet_length(replace(replace(part, '[', ''), '{', '')) > 100)
            THEN
                reason := 'payload: ' || inorder.json_refusal(part);
            END IF;
            part := metadata[i];
            IF reason IS NULL AND (NOT valid OR part ~ suspect OR (octet_length(part) > 201
                AND octet_length(part) - octet_length(replace(replace(part, '[', ''), '{', '')) > 100))
            THEN
                reason := 'metadata: ' || inorder.json_refusal(part);
            END IF;
        END IF;
        IF reason IS NOT NULL THEN
            RETURN format('event %s of %s (event_id %s, event_type %L): %s',
                i, n, event_ids[i], left(event_types[i], 200), reason);
        ELSIF expected IS NOT NULL AND stream_ids[i] IS NULL THEN
            RETURN format('event %s of %s (event_id %s, event_type %L): no stream to have the expected version',
                i, n, event_ids[i], event_types[i]);
        ELSIF expected IS NOT NULL
            AND (stream_types[i], stream_ids[i], coalesce(tenant_ids[i], ''))
                IS DISTINCT FROM (stream_types[1], stream_ids[1], coalesce(tenant_ids[1], ''))
        THEN
            RETURN format(
                'event %s of %s (event_id %s, event_type %L): another stream than the first event''s; an expected version is of one stream',
                i, n, event_ids[i], event_types[i]);
        END IF;
    END LOOP;
    IF n > 1 THEN
        IF bytes > greatest(67108864, max_bytes) THEN
            RETURN format('a batch of %s bytes; at most %s go into one append: split it',
                bytes, greatest(67108864, max_bytes));
        END IF;
        SELECT format('event_id %s twice in one batch', twice)
        INTO reason
        FROM unnest(event_ids) AS twice
        GROUP BY twice
        HAVING count(*) > 1
        LIMIT 1;
        RETURN reason;
    END IF;
    RETURN NULL;
END
$body$;
