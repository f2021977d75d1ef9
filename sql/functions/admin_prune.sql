-- The state rows, dead letters and unfinished rows of the ledger that still need events of these types at or below an id, in words.
-- What has no position in the ledger needs no event.
CREATE OR REPLACE FUNCTION inorder.admin_needed_by(types text[], upto bigint)
RETURNS TABLE (bound bigint, who text)
LANGUAGE sql
VOLATILE
AS $body$
    SELECT c.position,
           format('%s, %s at position %s',
               inorder.admin_name(c.name, c.instance, CASE WHEN c.partitions > 1 THEN c.partition END),
               inorder.admin_status(c.status, c.next_attempt_at), c.position)
    FROM inorder.consumers AS c
    WHERE c.status NOT IN ('disabled', 'expired')
        AND c.position < upto
        AND (types IS NULL OR c.event_types IS NULL OR c.event_types && types)
    UNION ALL
    SELECT d.position - 1,
           format('dead letter %s of %s, %s at position %s', d.id, inorder.admin_name(d.consumer, d.instance, NULL), d.state, d.position)
    FROM inorder.dead_letters AS d
    WHERE d.state IN ('open', 'retry_requested')
        AND d.event_id IS NOT NULL
        AND d.position <= upto
        AND (types IS NULL OR d.event_type IS NULL OR d.event_type = ANY (types))
    UNION ALL
    SELECT min(l.position) - 1,
           format('the ledger, %s not finished by "%s", the first %s at position %s', count(*), l.handler,
               (array_agg(replace(l.status, '_', ' ') ORDER BY l.position))[1], min(l.position))
    FROM inorder.ledger AS l
    WHERE l.status IN ('pending', 'in_progress')
        AND l.position <= upto
        AND l.position > (SELECT s.pruned_to FROM inorder.log_state AS s)
        AND NOT inorder.ledger_left_behind(l)
        AND (types IS NULL OR EXISTS (
            SELECT FROM inorder.events AS e WHERE e.event_id = l.event_id AND e.event_type = ANY (types)
        ))
    GROUP BY l.handler
$body$;

-- Deletes old events, at most `max_events` in one call; call again while `more`. Answers how many went, up to which id, and
-- who needs what was old enough but had to stay. With `types`, only events of these types. `dry_run` counts all that could go.
--
-- It goes by positions: what goes is a prefix of the ids (of these types), each recorded before `before`, so that one old
-- event behind a younger one stays; at or below the safe head; at or below the position of every consumer that is neither
-- disabled nor expired (and wants one of the types); below every dead letter that is open or to be retried, and every row of the
-- ledger that is not finished and may still be. What the ledger keeps of the events that go, goes with them.
--
-- The order that makes it safe: (1) the safe head, then the candidates up to it, which can no longer change but by another
-- prune; (2) FOR UPDATE on the row of log_state; (3) in a later snapshot, one statement reads state rows, dead letters and the
-- ledger, so that an event that moves from the one to the other is seen in one of them; (4) the deletion, and what is gone is recorded in
-- the same row. Who lowers what prune goes by (a registration, enable, reset, the retry of a discarded dead letter) takes FOR SHARE
-- on that row first: it is either committed and seen in (3), or waits, and then sees what was recorded in (4).
CREATE OR REPLACE FUNCTION inorder.prune(
    before timestamptz, types text[] DEFAULT NULL, dry_run boolean DEFAULT false, max_events int DEFAULT 10000,
    "by" text DEFAULT session_user, why text DEFAULT NULL
)
RETURNS TABLE (deleted bigint, up_to bigint, more boolean, blocked_by text[])
LANGUAGE plpgsql
VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $body$
#variable_conflict use_column
DECLARE
    settled    bigint;
    above      bigint;
    young      bigint;
    old        bigint[];
    old_to     bigint;
    ended      boolean;
    held_up    boolean;
    bound      bigint;
    gone_types jsonb;
    was        inorder.log_state;
    now        inorder.log_state;
BEGIN
    IF prune.before IS NULL OR coalesce(max_events, 0) < 1 OR types = '{}' OR array_position(types, NULL) IS NOT NULL THEN
        RAISE EXCEPTION 'cannot prune: before is %, max_events is %, types is %',
            coalesce(prune.before::text, 'NULL'), coalesce(max_events::text, 'NULL'), coalesce(types::text, 'NULL')
            USING ERRCODE = 'IO004',
                HINT = 'before must be a time, max_events at least 1, and types NULL (every type) or a list of names';
    END IF;
    settled := inorder.safe_head();
    -- Behind what earlier prunes left: the index entries of what is gone are not read again.
    SELECT greatest(s.pruned_to, (SELECT min(coalesce((s.pruned_types ->> t)::bigint, 0)) FROM unnest(types) AS t)) INTO above
    FROM inorder.log_state AS s;
    IF dry_run THEN
        SELECT e.id INTO young
        FROM inorder.events AS e
        WHERE e.id > above AND e.recorded_at >= prune.before AND (types IS NULL OR e.event_type = ANY (types))
        ORDER BY e.id
        LIMIT 1;
        SELECT max(e.id) INTO old_to
        FROM inorder.events AS e
        WHERE e.id > above AND e.id <= settled AND (young IS NULL OR e.id < young) AND (types IS NULL OR e.event_type = ANY (types));
        ended := young IS NULL OR young > settled;
    ELSE
        SELECT array_agg(p.id ORDER BY p.id) FILTER (WHERE p.is_old), count(*) <= max_events AND coalesce(bool_and(p.is_old), true)
        INTO old, ended
        FROM (
            SELECT c.id, bool_and(c.recorded_at < prune.before) OVER (ORDER BY c.id) AS is_old
            FROM (
                SELECT e.id, e.recorded_at
                FROM inorder.events AS e
                WHERE e.id > above AND e.id <= settled AND (types IS NULL OR e.event_type = ANY (types))
                ORDER BY e.id
                LIMIT max_events::bigint + 1
            ) AS c
        ) AS p;
        old_to := old[cardinality(old)];
        PERFORM inorder.admin_hold_log(true);
    END IF;
    -- One statement, one snapshot: see (3).
    SELECT least(old_to, min(n.bound)), coalesce(array_agg(n.who ORDER BY n.bound, n.who), '{}') INTO bound, blocked_by
    FROM inorder.admin_needed_by(types, old_to) AS n;
    -- Everything up to the safe head is old enough: is the next event, above it, too?
    IF ended THEN
        SELECT e.recorded_at < prune.before INTO held_up
        FROM inorder.events AS e
        WHERE e.id > settled AND (types IS NULL OR e.event_type = ANY (types))
        ORDER BY e.id
        LIMIT 1;
        IF held_up THEN
            blocked_by := blocked_by || format('the safe head, at %s: somebody may still write below it, see blockers()', settled);
        END IF;
    END IF;
    IF dry_run THEN
        SELECT count(*), max(e.id), false INTO deleted, up_to, more
        FROM inorder.events AS e
        WHERE e.id > above AND e.id <= bound AND (types IS NULL OR e.event_type = ANY (types));
        RETURN NEXT;
        RETURN;
    END IF;
    more := coalesce(old[max_events + 1] <= bound, false);
    SELECT array_agg(o.id), max(o.id) INTO old, up_to
    FROM unnest(old[1:max_events]) AS o (id)
    WHERE o.id <= bound;
    deleted := 0;
    IF up_to IS NOT NULL THEN
        SELECT * INTO was FROM inorder.log_state;
        UPDATE inorder.log_state SET pruning = pg_current_xact_id();
        WITH gone AS (
            DELETE FROM inorder.events AS e
            WHERE e.id = ANY (old)
            RETURNING e.id, e.event_id, e.event_type
        ), forgotten AS (
            DELETE FROM inorder.ledger AS l
            USING gone AS g
            WHERE l.event_id = g.event_id AND (l.status IN ('done', 'dead') OR inorder.ledger_left_behind(l))
        ), gone_type AS (
            SELECT g.event_type, count(*) AS events, max(g.id) AS highest FROM gone AS g GROUP BY g.event_type
        )
        SELECT coalesce(sum(t.events), 0), coalesce(jsonb_object_agg(t.event_type, t.highest), '{}') INTO deleted, gone_types
        FROM gone_type AS t;
        UPDATE inorder.log_state AS s
        SET pruning = NULL,
            pruned_to = CASE WHEN types IS NULL THEN greatest(s.pruned_to, prune.up_to) ELSE s.pruned_to END,
            pruned_types = (
                SELECT coalesce(jsonb_object_agg(t.key, t.value), '{}')
                FROM jsonb_each(CASE WHEN types IS NULL THEN s.pruned_types ELSE s.pruned_types || gone_types END) AS t
                WHERE t.value::bigint > CASE WHEN types IS NULL THEN greatest(s.pruned_to, prune.up_to) ELSE s.pruned_to END
            )
        RETURNING * INTO now;
        PERFORM inorder.admin_record('prune', prune.by, why, NULL, NULL, NULL,
            to_jsonb(was) - '{only_row,pruning,ledger_block}'::text[],
            to_jsonb(now) - '{only_row,pruning,ledger_block}'::text[] || jsonb_build_object('deleted', deleted));
    END IF;
    RETURN NEXT;
END
$body$;
