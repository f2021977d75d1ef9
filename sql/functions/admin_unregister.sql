-- Removes a consumer, or one instance of it: all its rows. Its unfinished dead letters are discarded, as nobody could retry
-- them, and what waits in its queue is forgotten; what it did stays in the ledger, so that it is not done again. A dispatcher
-- that still has it registers it anew at its next start. Of one that is gone already, what was recorded for it since is forgotten.
CREATE OR REPLACE FUNCTION inorder.unregister(
    consumer text, instance text DEFAULT '',
    "by" text DEFAULT session_user, why text DEFAULT NULL, force boolean DEFAULT false
)
RETURNS SETOF inorder.audit
LANGUAGE plpgsql
VOLATILE
SET search_path = pg_catalog, pg_temp
AS $body$
#variable_conflict use_column
DECLARE
    was       inorder.consumers;
    forgotten bigint;
BEGIN
    -- What a producer recorded while it was being unregistered, and committed later, nobody would ever run.
    IF NOT EXISTS (SELECT FROM inorder.consumers AS c WHERE c.name = unregister.consumer AND c.instance = unregister.instance) THEN
        DELETE FROM inorder.ledger AS l
        WHERE l.handler = inorder.ledger_handler(unregister.consumer, unregister.instance) AND l.status = 'pending' AND l.token = 0;
        GET DIAGNOSTICS forgotten = ROW_COUNT;
        IF forgotten > 0 THEN
            RETURN NEXT inorder.admin_record('unregister', unregister.by, why, unregister.consumer, unregister.instance, 0,
                jsonb_build_object('pending', forgotten), NULL);
            RETURN;
        END IF;
    END IF;
    FOR was IN SELECT * FROM inorder.admin_hold(consumer, instance, NULL, force) LOOP
        DELETE FROM inorder.consumers AS c WHERE c.lock_key = was.lock_key;
        RETURN NEXT inorder.admin_record('unregister', unregister.by, why, was.name, was.instance, was.partition, to_jsonb(was), NULL);
    END LOOP;
    UPDATE inorder.dead_letters AS d
    SET state = 'discarded', updated_at = clock_timestamp(), updated_by = coalesce(nullif(unregister.by, ''), session_user)
    WHERE d.consumer = unregister.consumer AND d.instance = unregister.instance AND d.state IN ('open', 'retry_requested');
    -- What somebody is running at the moment ends first.
    DELETE FROM inorder.ledger AS l
    WHERE l.handler = inorder.ledger_handler(unregister.consumer, unregister.instance)
        AND (l.status = 'pending' OR l.status = 'in_progress' AND l.lease_until <= clock_timestamp());
END
$body$;

-- Splits a consumer into another number of partitions. All its rows must stand at the same position, be idle or disabled
-- alike, and wait for nothing: then every event above is delivered once, by the new partition that it belongs to.
-- The revision is raised: a process that still has the old number of partitions no longer runs the consumer.
CREATE OR REPLACE FUNCTION inorder.repartition(
    consumer text, partitions int, instance text DEFAULT '',
    "by" text DEFAULT session_user, why text DEFAULT NULL, force boolean DEFAULT false
)
RETURNS SETOF inorder.audit
LANGUAGE plpgsql
VOLATILE
SET search_path = pg_catalog, pg_temp
AS $body$
#variable_conflict use_column
DECLARE
    rows    inorder.consumers[];
    was     inorder.consumers;
    now     inorder.consumers;
    refusal text;
BEGIN
    IF repartition.partitions IS NULL OR repartition.partitions NOT BETWEEN 1 AND 1024 THEN
        RAISE EXCEPTION 'cannot split % into % partitions: it must be 1 to 1,024',
            inorder.admin_name(consumer, instance, NULL), coalesce(repartition.partitions::text, 'NULL')
            USING ERRCODE = 'IO004';
    END IF;
    SELECT array_agg(h ORDER BY h.partition) INTO rows FROM inorder.admin_hold(consumer, instance, NULL, force) AS h;
    was := rows[1];
    SELECT CASE
        WHEN was.partitions = repartition.partitions THEN format('it has %s already', was.partitions)
        WHEN count(*) <> was.partitions THEN format('it has rows for %s of its %s partitions', count(*), was.partitions)
        WHEN count(DISTINCT r.status) > 1 OR max(r.status) NOT IN ('idle', 'disabled') OR max(r.next_attempt_at) > clock_timestamp()
            THEN inorder.admin_standing(repartition.consumer, repartition.instance, NULL)
        WHEN count(DISTINCT r.position) > 1
            THEN format('its positions differ: %s', string_agg(format('partition %s is at %s', r.partition, r.position), ', ' ORDER BY r.partition))
    END INTO refusal
    FROM unnest(rows) AS r;
    IF refusal IS NOT NULL THEN
        RAISE EXCEPTION 'cannot split % into % partitions: %', inorder.admin_name(consumer, instance, NULL), repartition.partitions, refusal
            USING ERRCODE = 'IO004',
                HINT = 'every partition must be idle or every one disabled, with the same position: let them catch up to the safe head while nobody appends, then disable() them';
    END IF;
    -- Fewer: the counters of the rows that go live on in the first one.
    FOR was IN SELECT * FROM unnest(rows) AS r WHERE r.partition >= repartition.partitions LOOP
        DELETE FROM inorder.consumers AS c WHERE c.lock_key = was.lock_key;
        RETURN NEXT inorder.admin_record('repartition', repartition.by, why, was.name, was.instance, was.partition, to_jsonb(was), NULL);
    END LOOP;
    FOR was IN SELECT * FROM unnest(rows) AS r WHERE r.partition < repartition.partitions LOOP
        UPDATE inorder.consumers AS c
        SET partitions = repartition.partitions,
            revision = c.revision + 1,
            processed = c.processed + gone.processed,
            failed = c.failed + gone.failed,
            skipped = c.skipped + gone.skipped,
            updated_at = clock_timestamp()
        FROM (
            SELECT coalesce(sum(r.processed), 0) AS processed, coalesce(sum(r.failed), 0) AS failed, coalesce(sum(r.skipped), 0) AS skipped
            FROM unnest(rows) AS r
            WHERE was.partition = 0 AND r.partition >= repartition.partitions
        ) AS gone
        WHERE c.lock_key = was.lock_key;
        now := inorder.admin_clear_failure(was.lock_key);
        RETURN NEXT inorder.admin_record('repartition', repartition.by, why, was.name, was.instance, was.partition, to_jsonb(was), to_jsonb(now));
    END LOOP;
    was := rows[1];
    FOR now IN
        INSERT INTO inorder.consumers (
            name, instance, partition, kind, revision, partitions, event_types, max_attempts, position, status, accepted_to
        )
        SELECT was.name, was.instance, p, was.kind, was.revision + 1, repartition.partitions, was.event_types, was.max_attempts,
               was.position, was.status, r.accepted_to
        FROM generate_series(was.partitions, repartition.partitions - 1) AS p
        CROSS JOIN (SELECT min(r.accepted_to) AS accepted_to FROM unnest(rows) AS r) AS r
        RETURNING *
    LOOP
        RETURN NEXT inorder.admin_record('repartition', repartition.by, why, now.name, now.instance, now.partition, NULL, to_jsonb(now));
    END LOOP;
    -- A dead letter that may be retried goes to the partition that delivers its event now.
    UPDATE inorder.dead_letters AS d
    SET partition = (e.stream_hash & 2147483647) % repartition.partitions
    FROM inorder.events AS e
    WHERE e.event_id = d.event_id AND d.consumer = repartition.consumer AND d.instance = repartition.instance
        AND d.state IN ('open', 'retry_requested');
END
$body$;
