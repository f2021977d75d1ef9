-- Registers one state row. Idempotent: an existing position is never touched. Answers what came of it:
--   registered  the row is new
--   unchanged   the row is there, as asked for
--   updated     the row is there, and took the higher revision's configuration from its position on
--   outdated    the row was written by a higher revision; `registered` says which
--   kind        the row is there with another kind, `partitions` with another number of partitions,
--   differs     with the same revision and another filter: refused
--   returned    the row had expired and is back: where it was, or (`rejoin`) at start_after, with a dead letter for the range
-- FOR SHARE on log_state: prune, which takes it FOR UPDATE, sees the new row or is seen to have pruned.
CREATE OR REPLACE FUNCTION inorder.register(
    consumer text, instance text, partition int, kind text, revision int, event_types text[], partitions int,
    max_attempts int, start_after bigint, rejoin boolean,
    OUT outcome text, OUT registered int, OUT was text, OUT was_position bigint
)
LANGUAGE plpgsql
VOLATILE
AS $body$
#variable_conflict use_column
DECLARE
    c inorder.consumers;
BEGIN
    SELECT * INTO c
    FROM inorder.consumers AS r
    WHERE r.name = register.consumer AND r.instance = register.instance AND r.partition = register.partition;
    IF NOT FOUND THEN
        PERFORM FROM inorder.log_state FOR SHARE;
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
    END IF;
    registered := c.revision;
    was_position := c.position;
    IF c.kind <> register.kind THEN
        outcome := 'kind';
        was := c.kind;
    ELSIF c.partitions <> register.partitions THEN
        outcome := 'partitions';
        was := c.partitions::text;
    ELSIF c.revision > register.revision THEN
        outcome := 'outdated';
    ELSIF c.revision = register.revision AND c.event_types IS DISTINCT FROM register.event_types THEN
        outcome := 'differs';
        was := coalesce(c.event_types::text, 'every type');
    ELSIF c.revision = register.revision AND c.max_attempts = register.max_attempts AND c.status <> 'expired'
        AND c.seen_at > clock_timestamp() - interval '1 hour'
    THEN
        outcome := 'unchanged';
    ELSE
        -- As it is now, and will be until this commits.
        SELECT * INTO c
        FROM inorder.consumers AS r
        WHERE r.name = register.consumer AND r.instance = register.instance AND r.partition = register.partition
        FOR NO KEY UPDATE;
        was := c.status;
        was_position := c.position;
        IF c.status = 'expired' AND register.rejoin AND register.start_after > c.position THEN
            INSERT INTO inorder.dead_letters (consumer, instance, partition, position, position_to, error, reason)
            VALUES (c.name, c.instance, c.partition, c.position + 1, register.start_after,
                'expired, and came back at the head', 'skip_policy');
            was_position := register.start_after;
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
        WHERE r.name = register.consumer AND r.instance = register.instance AND r.partition = register.partition
            AND r.revision <= register.revision;
        outcome := CASE
            WHEN c.status = 'expired' THEN 'returned'
            WHEN c.revision < register.revision THEN 'updated'
            ELSE 'unchanged'
        END;
    END IF;
END
$body$;
