-- Lets a dead consumer try again, at the event at which it died. The position stays.
CREATE OR REPLACE FUNCTION inorder.restart(
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
    was inorder.consumers;
    now inorder.consumers;
BEGIN
    FOR was IN SELECT * FROM inorder.admin_hold(consumer, instance, partition, force, ARRAY['dead']) LOOP
        UPDATE inorder.consumers AS c
        SET status = 'idle',
            attempts = 0,
            faults = 0,
            rearms = 0,
            next_attempt_at = NULL,
            updated_at = clock_timestamp()
        WHERE c.lock_key = was.lock_key
        RETURNING * INTO now;
        RETURN NEXT inorder.admin_record('restart', restart.by, why, was.name, was.instance, was.partition, to_jsonb(was), to_jsonb(now));
    END LOOP;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'cannot restart %: %', inorder.admin_name(consumer, instance, partition),
            inorder.admin_standing(consumer, instance, partition)
            USING ERRCODE = 'IO004',
                HINT = 'only a dead consumer is restarted; a waiting one tries again by itself, a disabled or expired one needs enable()';
    END IF;
END
$body$;
