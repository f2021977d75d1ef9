-- Registers one state row. Idempotent: an existing position is never touched. Answers what came of it:
--   registered  the row is new
--   unchanged   the row is there, as asked for
--   updated     the row is there, and took the higher revision's configuration from its position on
--   outdated    the row was written by a higher revision; `registered` says which
--   kind        the row is there with another kind, `partitions` with another number of partitions,
--   differs     with the same revision and another filter: refused
--   forgotten   the row would begin where the ledger has forgotten what was done, up to `was_position`: refused
--   returned    the row had expired and is back: where it was, or at `rejoin_at`, with a dead letter for the range
-- FOR SHARE on log_state, before any row: prune, which takes it FOR UPDATE, sees the row as it is written here, or is seen to
-- have pruned. So it is with a new row, and with one that prune went past because it had expired or wanted fewer types.
CREATE OR REPLACE FUNCTION inorder.register(
    consumer text, instance text, partition int, kind text, revision int, event_types text[], partitions int,
    max_attempts int, start_after bigint, rejoin_at bigint,
    OUT outcome text, OUT registered int, OUT was text, OUT was_position bigint
)
LANGUAGE plpgsql
VOLATILE
AS $body$
#variable_conflict use_column
DECLARE
    c      inorder.consumers;
    locked boolean := false;
BEGIN
    SELECT * INTO c
    FROM inorder.consumers AS r
    WHERE r.name = register.consumer AND r.instance = register.instance AND r.partition = register.partition;
    IF NOT FOUND THEN
        PERFORM FROM inorder.log_state FOR SHARE;
        SELECT 'forgotten', register.revision, f.floor INTO outcome, registered, was_position
        FROM inorder.ledger_floors AS f
        WHERE f.handler = inorder.ledger_handler(register.consumer, register.instance) AND f.floor > register.start_after
            AND register.kind IN ('effect', 'queued');
        IF FOUND THEN
            RETURN;
        END IF;
        INSERT INTO inorder.consumers (name, instance, partition, kind, revision, event_types, partitions, max_attempts, position)
        VALUES (register.consumer, register.instance, register.partition, register.kind, register.revision,
            register.event_types, register.partitions, register.max_attempts, register.start_after)
        ON CONFLICT DO NOTHING
        RETURNING 'registered', revision, position INTO outcome, registered, was_position;
        IF FOUND THEN
            RETURN;
        END IF;
        SELECT * INTO c
        FROM inorder.consumers AS r
        WHERE r.name = register.consumer AND r.instance = register.instance AND r.partition = register.partition;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'consumer "%" was unregistered while it was being registered', register.consumer
                USING ERRCODE = 'serialization_failure', HINT = 'register it again';
        END IF;
    END IF;
    LOOP
        registered := c.revision;
        was_position := c.position;
        outcome := CASE
            WHEN c.kind <> register.kind THEN 'kind'
            WHEN c.partitions <> register.partitions THEN 'partitions'
            WHEN c.revision > register.revision THEN 'outdated'
            WHEN c.revision = register.revision AND c.event_types IS DISTINCT FROM register.event_types THEN 'differs'
            WHEN c.status = 'expired' THEN 'returned'
            WHEN c.revision < register.revision THEN 'updated'
            ELSE 'unchanged'
        END;
        was := CASE outcome
            WHEN 'kind' THEN c.kind
            WHEN 'partitions' THEN c.partitions::text
            WHEN 'differs' THEN coalesce(c.event_types::text, 'every type')
            ELSE c.status
        END;
        IF outcome IN ('kind', 'partitions', 'outdated', 'differs')
            OR outcome = 'unchanged' AND c.max_attempts = register.max_attempts AND c.seen_at > clock_timestamp() - interval '1 hour'
        THEN
            RETURN;
        END IF;
        EXIT WHEN locked;
        PERFORM FROM inorder.log_state FOR SHARE;
        -- Once more as it is now, and will be until this commits: another process may be registering it, too.
        SELECT * INTO c
        FROM inorder.consumers AS r
        WHERE r.name = register.consumer AND r.instance = register.instance AND r.partition = register.partition
        FOR NO KEY UPDATE;
        locked := true;
    END LOOP;
    IF outcome = 'returned' AND register.rejoin_at > c.position THEN
        INSERT INTO inorder.dead_letters (consumer, instance, partition, position, position_to, error, reason)
        VALUES (c.name, c.instance, c.partition, c.position + 1, register.rejoin_at,
            'expired, and came back at the head', 'skip_policy');
        was_position := register.rejoin_at;
    END IF;
    UPDATE inorder.consumers AS r
    SET revision = register.revision,
        event_types = register.event_types,
        max_attempts = register.max_attempts,
        position = was_position,
        accepted_to = CASE WHEN was_position > c.position THEN was_position ELSE r.accepted_to END,
        status = CASE r.status WHEN 'expired' THEN 'idle' ELSE r.status END,
        seen_at = clock_timestamp(),
        updated_at = clock_timestamp()
    WHERE r.name = register.consumer AND r.instance = register.instance AND r.partition = register.partition;
END
$body$;
