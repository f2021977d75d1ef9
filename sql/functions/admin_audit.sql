-- What operators did, newest first: to one consumer, one action, by one operator or database user; NULL is all. `before_id` continues a list.
CREATE OR REPLACE FUNCTION inorder.audit_rows(
    of_consumer text DEFAULT NULL, of_instance text DEFAULT NULL, of_action text DEFAULT NULL, done_by text DEFAULT NULL,
    max_rows int DEFAULT 100, before_id bigint DEFAULT NULL
)
RETURNS SETOF inorder.audit
LANGUAGE plpgsql
VOLATILE
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_custom_plan
AS $body$
BEGIN
    -- What was done to a consumer that is gone is still told.
    IF of_consumer IS NOT NULL
        AND NOT EXISTS (SELECT FROM inorder.audit AS a WHERE a.consumer = of_consumer)
        AND NOT EXISTS (SELECT FROM inorder.consumers AS c WHERE c.name = of_consumer)
    THEN
        PERFORM inorder.admin_known(of_consumer, '', NULL);
    END IF;
    RETURN QUERY
    SELECT a.*
    FROM inorder.audit AS a
    WHERE (before_id IS NULL OR a.id < before_id)
        AND (of_consumer IS NULL OR a.consumer = of_consumer)
        AND (of_instance IS NULL OR a.instance = of_instance)
        AND (of_action IS NULL OR a.action = of_action)
        AND (done_by IS NULL OR a.by = done_by OR a.db_user = done_by)
    ORDER BY a.id DESC
    LIMIT max_rows;
END
$body$;
