-- The next event that a row would be given, up to a bound.
CREATE OR REPLACE FUNCTION inorder.admin_next_event(was inorder.consumers, bound bigint)
RETURNS inorder.events
LANGUAGE sql
VOLATILE
AS $body$
    SELECT e
    FROM inorder.events AS e
    WHERE e.id > was.position
        AND e.id <= bound
        AND (was.event_types IS NULL OR e.event_type = ANY (was.event_types))
        AND (was.partitions = 1 OR (e.stream_hash & 2147483647) % was.partitions = was.partition)
    ORDER BY e.id
    LIMIT 1
$body$;

-- Passes over one event: the one that the consumer would be given next, and only if it is the expected one. A dead letter
-- keeps it. The consumer goes on behind it; a disabled one stays disabled. Of a partitioned consumer the row is found by the event.
CREATE OR REPLACE FUNCTION inorder.skip_poison(
    consumer text, expected_event_id uuid, instance text DEFAULT '', partition int DEFAULT NULL,
    "by" text DEFAULT session_user, why text DEFAULT NULL, force boolean DEFAULT false
)
RETURNS SETOF inorder.audit
LANGUAGE plpgsql
VOLATILE
SET search_path = pg_catalog, pg_temp
AS $body$
#variable_conflict use_column
DECLARE
    poison inorder.events;
    next   inorder.events;
    was    inorder.consumers;
    now    inorder.consumers;
    home   int;
    bound  bigint;
    named  text;
BEGIN
    PERFORM inorder.admin_known(consumer, instance, partition);
    SELECT * INTO poison FROM inorder.events AS e WHERE e.event_id = skip_poison.expected_event_id;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'cannot skip event % of %: the log has no such event', coalesce(expected_event_id::text, 'NULL'),
            inorder.admin_name(consumer, instance, partition)
            USING ERRCODE = 'IO004', HINT = 'name the event by its event_id; progress() tells which event a consumer failed at';
    END IF;
    named := format('%s (%s)', poison.id, poison.event_id);
    SELECT (poison.stream_hash & 2147483647) % c.partitions INTO home
    FROM inorder.consumers AS c
    WHERE c.name = skip_poison.consumer AND c.instance = skip_poison.instance
    LIMIT 1;
    IF partition <> home THEN
        RAISE EXCEPTION 'cannot skip event % of %: it belongs to partition %', named,
            inorder.admin_name(consumer, instance, partition), home
            USING ERRCODE = 'IO004', HINT = 'leave the partition out';
    END IF;
    FOR was IN SELECT * FROM inorder.admin_hold(consumer, instance, home, force) LOOP
        IF inorder.pruned_unread(was.position, was.accepted_to, was.event_types) IS NOT NULL THEN
            RAISE EXCEPTION 'cannot skip event % of %: events that it has not read, in %, were pruned', named,
                inorder.admin_name(consumer, instance, partition),
                inorder.pruned_unread(was.position, was.accepted_to, was.event_types)
                USING ERRCODE = 'IO004', HINT = 'accept that with accept_pruned() first';
        END IF;
        -- An event that was delivered was below the safe head then, though a safe head found now may be lower.
        SELECT greatest(inorder.safe_head(), max(e.id)) INTO bound
        FROM inorder.events AS e
        WHERE e.event_id = was.failed_event_id;
        next := inorder.admin_next_event(was, bound);
        IF next.event_id IS DISTINCT FROM poison.event_id THEN
            RAISE EXCEPTION 'cannot skip event % of %: %', named,
                inorder.admin_name(consumer, instance, partition),
                CASE
                    WHEN poison.id <= was.position THEN format('it is behind, at position %s', was.position)
                    WHEN poison.id > bound THEN format('it is beyond the safe head %s', bound)
                    WHEN next.id IS NULL THEN 'it has nothing to read'
                    WHEN next.id > poison.id THEN format('it does not want events of type %s', poison.event_type)
                    ELSE format('the next event is %s (%s, %s)', next.id, next.event_id, next.event_type)
                END
                USING ERRCODE = 'IO004', HINT = 'only the event that the consumer would be given next is skipped';
        END IF;
        INSERT INTO inorder.dead_letters (
            consumer, instance, partition, position, event_id, event_type, attempts, error, reason, created_by
        )
        VALUES (
            was.name, was.instance, was.partition, poison.id, poison.event_id, poison.event_type, was.attempts,
            CASE WHEN was.failed_event_id = poison.event_id THEN was.last_error END,
            'operator_skip', coalesce(nullif(skip_poison.by, ''), session_user)
        );
        PERFORM inorder.ledger_give_up(was.name, was.instance, poison.event_id);
        UPDATE inorder.consumers AS c
        SET position = poison.id, skipped = c.skipped + 1, updated_at = clock_timestamp()
        WHERE c.lock_key = was.lock_key;
        now := inorder.admin_clear_failure(was.lock_key);
        RETURN NEXT inorder.admin_record('skip_poison', skip_poison.by, why, was.name, was.instance, was.partition, to_jsonb(was), to_jsonb(now));
    END LOOP;
END
$body$;
