-- What is kept of hand-offs, and for how long.

-- The scopes that have rows: found one after the other, whatever number of rows each has.
CREATE OR REPLACE FUNCTION inorder.handoffs_in_scopes()
RETURNS SETOF text
LANGUAGE sql
STABLE
ROWS 10
AS $body$
    WITH RECURSIVE scopes AS (
        SELECT (SELECT h.scope FROM inorder.handoffs AS h ORDER BY h.scope LIMIT 1) AS scope
        UNION ALL
        SELECT (SELECT h.scope FROM inorder.handoffs AS h WHERE h.scope > s.scope ORDER BY h.scope LIMIT 1)
        FROM scopes AS s
        WHERE s.scope IS NOT NULL
    )
    SELECT s.scope FROM scopes AS s WHERE s.scope IS NOT NULL
$body$;

-- Deletes rows of a scope that are kept no longer, oldest first, but none that the direct path still has to run; answers how many.
-- `older_than` NULL: as the scope's programs have it, 30 days where none has said. What the direct path took and ran late is kept from
-- when it ran it: until then it may have been offered anew. Rows that somebody holds wait for the next time.
CREATE OR REPLACE FUNCTION inorder.handoffs_sweep(of_scope text, older_than interval, max_rows int)
RETURNS bigint
LANGUAGE plpgsql
VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_custom_plan
AS $body$
#variable_conflict use_column
DECLARE
    run_before       timestamptz;
    delivered_before timestamptz;
    deleted          bigint;
BEGIN
    SELECT statement_timestamp() - coalesce(older_than, s.keep, interval '30 days'),
           statement_timestamp() - coalesce(older_than, s.keep_deliveries, interval '30 days')
    INTO run_before, delivered_before
    FROM (SELECT) AS one
    LEFT JOIN inorder.handoff_scopes AS s ON s.scope = of_scope;
    WITH old AS (
        SELECT h.scope, h.key
        FROM inorder.handoffs AS h
        WHERE h.scope = of_scope
            AND h.taken_at < greatest(run_before, delivered_before)
            AND (
                h.taken_by = 'delivery' AND h.taken_at < delivered_before
                OR h.ran_at < run_before AND h.taken_at < run_before
            )
        ORDER BY h.taken_at
        LIMIT max_rows
        FOR UPDATE SKIP LOCKED
    )
    DELETE FROM inorder.handoffs AS h
    USING old AS o
    WHERE h.scope = o.scope AND h.key = o.key;
    GET DIAGNOSTICS deleted = ROW_COUNT;
    RETURN deleted;
END
$body$;
