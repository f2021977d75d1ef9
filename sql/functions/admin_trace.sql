-- How events led to one another. There is no index on causes and correlations, as every append would pay for it: looking back goes by the
-- key, looking forward reads a part of the log at a time.

-- An event, its cause, the cause of that, and so on. It ends where a cause is not in the log, and where causes go in a circle.
CREATE OR REPLACE FUNCTION inorder.trace_back(of_event uuid, max_events int DEFAULT 1000)
RETURNS TABLE (
    id bigint, event_id uuid, tenant_id text, event_type text, stream_type text, stream_id text, stream_version bigint,
    correlation_id uuid, causation_id uuid, created_by text, recorded_at timestamptz
)
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $body$
    WITH RECURSIVE cause AS (
        SELECT e.id, e.event_id, e.causation_id FROM inorder.events AS e WHERE e.event_id = of_event
        UNION
        SELECT e.id, e.event_id, e.causation_id FROM cause AS c JOIN inorder.events AS e ON e.event_id = c.causation_id
    ), found AS (
        SELECT c.id FROM cause AS c LIMIT max_events
    )
    SELECT e.id, e.event_id, e.tenant_id, e.event_type, e.stream_type, e.stream_id, e.stream_version,
           e.correlation_id, e.causation_id, e.created_by, e.recorded_at
    FROM found AS f
    JOIN inorder.events AS e ON e.id = f.id
    ORDER BY e.id
$body$;

-- What followed: the events that these caused, that those caused, and so on; and all events with a correlation, with what those caused.
-- In id order, of the part of the log from `after_id` to `to_id`, which is never beyond the safe head. A cause lies in front of what it
-- caused, so that parts that follow one another find all, when each is told what the parts before it found.
CREATE OR REPLACE FUNCTION inorder.trace_forward(
    event_ids uuid[], of_correlation uuid DEFAULT NULL, after_id bigint DEFAULT 0, to_id bigint DEFAULT NULL, max_events int DEFAULT 1000
)
RETURNS TABLE (
    id bigint, event_id uuid, tenant_id text, event_type text, stream_type text, stream_id text, stream_version bigint,
    correlation_id uuid, causation_id uuid, created_by text, recorded_at timestamptz
)
LANGUAGE plpgsql
VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_custom_plan
AS $body$
#variable_conflict use_column
BEGIN
    IF to_id IS NULL THEN
        to_id := inorder.safe_head();
    END IF;
    RETURN QUERY
    WITH RECURSIVE known AS MATERIALIZED (
        SELECT DISTINCT k.event_id FROM unnest(trace_forward.event_ids) AS k (event_id)
    ), part AS MATERIALIZED (
        SELECT e.id, e.event_id, e.causation_id, e.correlation_id
        FROM inorder.events AS e
        WHERE e.id > after_id AND e.id <= to_id
            AND (e.causation_id IS NOT NULL OR e.correlation_id = of_correlation)
    ), followed AS (
        SELECT p.id, p.event_id
        FROM part AS p
        WHERE p.correlation_id = of_correlation OR p.causation_id IN (SELECT k.event_id FROM known AS k)
        UNION
        SELECT p.id, p.event_id FROM followed AS f JOIN part AS p ON p.causation_id = f.event_id
    ), found AS (
        SELECT f.id
        FROM followed AS f
        WHERE f.event_id NOT IN (SELECT k.event_id FROM known AS k)
        ORDER BY f.id
        LIMIT max_events
    )
    SELECT e.id, e.event_id, e.tenant_id, e.event_type, e.stream_type, e.stream_id, e.stream_version,
           e.correlation_id, e.causation_id, e.created_by, e.recorded_at
    FROM found AS f
    JOIN inorder.events AS e ON e.id = f.id
    ORDER BY e.id;
END
$body$;
