-- Stops a consumer until it is enabled. It no longer holds back prune.
CREATE OR REPLACE FUNCTION inorder.disable(
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
    FOR was IN SELECT * FROM inorder.admin_hold(consumer, instance, partition, force, ARRAY['idle', 'dead', 'expired']) LOOP
        UPDATE inorder.consumers AS c
        SET status = 'disabled', updated_at = clock_timestamp()
        WHERE c.lock_key = was.lock_key
        RETURNING * INTO now;
        RETURN NEXT inorder.admin_record('disable', disable.by, why, was.name, was.instance, was.partition, to_jsonb(was), to_jsonb(now));
    END LOOP;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'cannot disable %: %', inorder.admin_name(consumer, instance, partition),
            inorder.admin_standing(consumer, instance, partition)
            USING ERRCODE = 'IO004', HINT = 'nothing is to be done; enable() lets it run again';
    END IF;
END
$body$;

-- Lets a disabled or expired consumer run again, from where it stands and with a fresh start at the event that failed, if
-- one did. From now on it holds back prune: so prune must not be under way.
CREATE OR REPLACE FUNCTION inorder.enable(
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
    PERFORM inorder.admin_hold_log(false);
    FOR was IN SELECT * FROM inorder.admin_hold(consumer, instance, partition, force, ARRAY['disabled', 'expired']) LOOP
        UPDATE inorder.consumers AS c
        SET status = 'idle',
            attempts = 0,
            faults = 0,
            rearms = 0,
            next_attempt_at = NULL,
            seen_at = clock_timestamp(),
            updated_at = clock_timestamp()
        WHERE c.lock_key = was.lock_key
        RETURNING * INTO now;
        RETURN NEXT inorder.admin_record('enable', enable.by, why, was.name, was.instance, was.partition, to_jsonb(was), to_jsonb(now));
    END LOOP;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'cannot enable %: %', inorder.admin_name(consumer, instance, partition),
            inorder.admin_standing(consumer, instance, partition)
            USING ERRCODE = 'IO004', HINT = 'only a disabled or expired consumer is enabled; a dead one needs restart() or skip_poison()';
    END IF;
END
$body$;
