-- What operators see of the ledger and do to it. A key is the event_id, or the uuid that stands for a text.

-- Whose effects: the consumer, where the handler is one. Otherwise the handler's name stands for it.
CREATE OR REPLACE FUNCTION inorder.admin_handler(handler text, OUT consumer text, OUT instance text, OUT kind text)
LANGUAGE sql
VOLATILE
AS $body$
    SELECT coalesce(c.name, $1), coalesce(c.instance, ''), c.kind
    FROM (SELECT) AS h
    LEFT JOIN inorder.consumers AS c ON inorder.ledger_handler(c.name, c.instance) = $1 AND c.kind IN ('effect', 'queued')
    LIMIT 1
$body$;

-- Rows of the ledger: of one key, of one handler, in one status; `unfinished` is pending or in progress, NULL whatever. In the order of
-- their keys; `after_key` and `after_handler` continue a list. `owner_gone`: the process of the last claim is known to live no more.
CREATE OR REPLACE FUNCTION inorder.ledger_rows(
    key uuid DEFAULT NULL, of_handler text DEFAULT NULL, in_status text DEFAULT NULL, max_rows int DEFAULT 100,
    after_key uuid DEFAULT NULL, after_handler text DEFAULT NULL
)
RETURNS TABLE (
    event_id uuid, handler text, status text, attempts int, faults int, next_attempt_at timestamptz, lease_until timestamptz, token bigint,
    "position" bigint, event_type text, stream text, owner uuid, owner_host text, owner_pid int, owner_gone boolean,
    last_error text, created_at timestamptz, updated_at timestamptz
)
LANGUAGE plpgsql
VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_custom_plan
AS $body$
#variable_conflict use_column
BEGIN
    IF in_status NOT IN ('pending', 'in_progress', 'done', 'dead', 'unfinished') THEN
        RAISE EXCEPTION 'no row of the ledger has the status "%"', in_status
            USING ERRCODE = 'IO004', HINT = 'a status is pending, in_progress, done, dead or unfinished; NULL is every status';
    END IF;
    RETURN QUERY
    SELECT l.event_id, l.handler, l.status, l.attempts, l.faults, l.next_attempt_at, l.lease_until, l.token,
           coalesce(l.position, e.id), e.event_type, l.stream, l.owner, i.host, i.pid,
           CASE WHEN l.owner IS NOT NULL THEN inorder.is_gone(l.owner) END,
           l.last_error, l.created_at, l.updated_at
    FROM (
        SELECT *
        FROM inorder.ledger AS r
        WHERE (key IS NULL OR r.event_id = key)
            AND (of_handler IS NULL OR r.handler = of_handler)
            AND (in_status IS NULL OR r.status = in_status OR in_status = 'unfinished')
            AND (in_status IS DISTINCT FROM 'unfinished' OR r.status IN ('pending', 'in_progress'))
            AND (after_key IS NULL OR (r.event_id, r.handler) > (after_key, coalesce(after_handler, '')))
        ORDER BY r.event_id, r.handler
        LIMIT max_rows
    ) AS l
    LEFT JOIN inorder.events AS e ON e.event_id = l.event_id
    LEFT JOIN inorder.instances AS i ON i.id = l.owner
    ORDER BY l.event_id, l.handler;
    IF NOT FOUND AND key IS NOT NULL AND in_status IS NULL AND after_key IS NULL THEN
        PERFORM inorder.admin_no_ledger_row(key, of_handler);
    END IF;
END
$body$;

-- Raises IO003: there is no such row.
CREATE OR REPLACE FUNCTION inorder.admin_no_ledger_row(key uuid, of_handler text)
RETURNS void
LANGUAGE plpgsql
VOLATILE
AS $body$
DECLARE
    there text;
BEGIN
    SELECT string_agg(format('"%s"', l.handler), ', ' ORDER BY l.handler) INTO there FROM inorder.ledger AS l WHERE l.event_id = key;
    RAISE EXCEPTION 'the ledger has no row of %', coalesce(key::text, 'NULL') || coalesce(format(' for "%s"', of_handler), '')
        USING ERRCODE = 'IO003', HINT = coalesce('it has rows for ' || there, 'nobody has claimed it, or what was done is forgotten');
END
$body$;

-- Locks a row of the ledger and answers it as it is under the lock. Raises IO003 where there is none, IO005 where it is being settled.
CREATE OR REPLACE FUNCTION inorder.admin_hold_ledger(key uuid, of_handler text)
RETURNS inorder.ledger
LANGUAGE plpgsql
VOLATILE
SET lock_timeout = '3s'
AS $body$
DECLARE
    entry inorder.ledger;
BEGIN
    SELECT * INTO entry FROM inorder.ledger AS l WHERE l.event_id = key AND l.handler = of_handler FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM inorder.admin_no_ledger_row(key, of_handler);
    END IF;
    RETURN entry;
EXCEPTION WHEN lock_not_available THEN
    RAISE EXCEPTION 'the row of % for "%" in the ledger is held by another session', key, of_handler
        USING ERRCODE = 'IO005', HINT = 'it is being claimed or settled; try again in a moment';
END
$body$;

-- Who holds a claim, in words.
CREATE OR REPLACE FUNCTION inorder.admin_claimant(entry inorder.ledger)
RETURNS text
LANGUAGE sql
VOLATILE
AS $body$
    SELECT coalesce((
        SELECT format('the process with pid %s on %s', i.pid, i.host) FROM inorder.instances AS i WHERE i.id = entry.owner
    ), 'somebody that is no dispatcher of this log, or is heard of no more') || format(', until %s', date_trunc('second', entry.lease_until))
$body$;

-- Takes a claim back whose holder is gone, before its lease runs out: it may be claimed at once, at no cost. What the former holder says of
-- it changes nothing any more. Of a holder that is not known to be gone only with `force`: if it lives, both may run the effect.
CREATE OR REPLACE FUNCTION inorder.ledger_release(
    key uuid, handler text, "by" text DEFAULT session_user, why text DEFAULT NULL, force boolean DEFAULT false
)
RETURNS SETOF inorder.audit
LANGUAGE plpgsql
VOLATILE
SET search_path = pg_catalog, pg_temp
AS $body$
#variable_conflict use_column
DECLARE
    was   inorder.ledger;
    now   inorder.ledger;
    whose record;
BEGIN
    was := inorder.admin_hold_ledger(key, handler);
    IF was.status <> 'in_progress' THEN
        RAISE EXCEPTION 'cannot release % of "%": it is %', key, handler, was.status
            USING ERRCODE = 'IO004', HINT = CASE was.status
                WHEN 'pending' THEN 'nobody holds it; it is claimed when it is due'
                WHEN 'done' THEN 'it is done; to have it done again, ledger_forget() it'
                ELSE 'it was given up; retry its dead letter, or ledger_forget() it'
            END;
    ELSIF was.lease_until > clock_timestamp() AND NOT force AND NOT coalesce(inorder.is_gone(was.owner), false) THEN
        RAISE EXCEPTION 'cannot release % of "%": it is held by %', key, handler, inorder.admin_claimant(was)
            USING ERRCODE = 'IO004',
                HINT = 'wait until then, when it may be claimed anyway; if the holder is known to be gone, release it with force: if it lives after all, the effect may be run twice at the same time';
    END IF;
    UPDATE inorder.ledger AS l
    SET status = 'pending', lease_until = NULL, next_attempt_at = NULL, updated_at = clock_timestamp()
    WHERE l.event_id = key AND l.handler = ledger_release.handler
    RETURNING * INTO now;
    SELECT * INTO whose FROM inorder.admin_handler(handler);
    RETURN NEXT inorder.admin_record('ledger_release', ledger_release.by, why, whose.consumer, whose.instance, NULL, to_jsonb(was), to_jsonb(now));
END
$body$;

-- Forgets a row of the ledger: the effect may then be run again, by whoever claims it. A claim that is valid is released first. What a
-- queue had not finished is passed over with that, and leaves a dead letter.
CREATE OR REPLACE FUNCTION inorder.ledger_forget(
    key uuid, handler text, "by" text DEFAULT session_user, why text DEFAULT NULL
)
RETURNS SETOF inorder.audit
LANGUAGE plpgsql
VOLATILE
SET search_path = pg_catalog, pg_temp
AS $body$
#variable_conflict use_column
DECLARE
    was   inorder.ledger;
    whose record;
BEGIN
    was := inorder.admin_hold_ledger(key, handler);
    IF was.status = 'in_progress' AND was.lease_until > clock_timestamp() THEN
        RAISE EXCEPTION 'cannot forget % of "%": it is held by %', key, handler, inorder.admin_claimant(was)
            USING ERRCODE = 'IO004', HINT = 'wait until then; if the holder is known to be gone, ledger_release() it first';
    END IF;
    SELECT * INTO whose FROM inorder.admin_handler(handler);
    IF whose.kind = 'queued' AND was.status IN ('pending', 'in_progress') THEN
        INSERT INTO inorder.dead_letters (
            consumer, instance, position, event_id, event_type, attempts, error, reason, state, created_by, updated_by
        )
        SELECT whose.consumer, whose.instance, e.id, e.event_id, e.event_type, was.attempts, was.last_error, 'operator_skip', 'discarded',
               coalesce(nullif(ledger_forget.by, ''), session_user), coalesce(nullif(ledger_forget.by, ''), session_user)
        FROM inorder.events AS e
        WHERE e.event_id = key;
    END IF;
    DELETE FROM inorder.ledger AS l WHERE l.event_id = key AND l.handler = ledger_forget.handler;
    RETURN NEXT inorder.admin_record('ledger_forget', ledger_forget.by, why, whose.consumer, whose.instance, NULL, to_jsonb(was), NULL);
END
$body$;

-- Forgets what was done long ago, in one bounded step: a walk through so many blocks of the table, which the next call goes on with,
-- whoever calls; `more` until it has come to the end. What a consumer could be given again stays: its position is below. Of events that are
-- still in the log, the floor of the handler remembers up to where something is forgotten.
-- FOR UPDATE on log_state: no consumer is moved or registered meanwhile. An hour at least: no statement takes so long that it saw a row
-- which is forgotten here before it was done.
CREATE OR REPLACE FUNCTION inorder.ledger_prune(
    older_than interval DEFAULT '30 days', blocks int DEFAULT 1000, "by" text DEFAULT session_user, why text DEFAULT NULL
)
RETURNS TABLE (deleted bigint, more boolean)
LANGUAGE plpgsql
VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $body$
#variable_conflict use_column
DECLARE
    first  bigint;
    ended  bigint;
    floors jsonb;
BEGIN
    IF older_than IS NULL OR older_than < interval '1 hour' OR coalesce(blocks, 0) < 1 THEN
        RAISE EXCEPTION 'cannot forget what was done: older_than is %, blocks is %', coalesce(older_than::text, 'NULL'), coalesce(blocks::text, 'NULL')
            USING ERRCODE = 'IO004', HINT = 'older_than must be an hour at least, blocks at least 1';
    END IF;
    PERFORM inorder.admin_hold_log(true);
    ended := pg_relation_size('inorder.ledger') / current_setting('block_size')::bigint;
    SELECT CASE WHEN s.ledger_block < ended THEN s.ledger_block ELSE 0 END INTO first FROM inorder.log_state AS s;
    more := first + blocks < ended;
    WITH forgotten AS (
        DELETE FROM inorder.ledger AS l
        WHERE l.ctid >= format('(%s,0)', first)::tid AND l.ctid < format('(%s,0)', first + blocks)::tid
            AND l.status = 'done' AND l.updated_at < clock_timestamp() - older_than
            AND NOT EXISTS (
                SELECT
                FROM inorder.consumers AS c
                WHERE inorder.ledger_handler(c.name, c.instance) = l.handler
                    AND c.position < coalesce(l.position, (SELECT e.id FROM inorder.events AS e WHERE e.event_id = l.event_id))
            )
        RETURNING l.event_id, l.handler
    ), raised AS (
        INSERT INTO inorder.ledger_floors AS f (handler, floor)
        SELECT g.handler, max(e.id)
        FROM forgotten AS g
        JOIN inorder.events AS e ON e.event_id = g.event_id
        GROUP BY g.handler
        ON CONFLICT ON CONSTRAINT ledger_floors_pkey
        DO UPDATE SET floor = greatest(f.floor, excluded.floor), updated_at = clock_timestamp()
        RETURNING f.handler, f.floor
    )
    SELECT (SELECT count(*) FROM forgotten), (SELECT jsonb_object_agg(r.handler, r.floor) FROM raised AS r) INTO deleted, floors;
    UPDATE inorder.log_state SET ledger_block = CASE WHEN more THEN first + blocks ELSE 0 END;
    IF deleted > 0 THEN
        PERFORM inorder.admin_record('ledger_prune', ledger_prune.by, why, NULL, NULL, NULL, NULL,
            jsonb_build_object('deleted', deleted, 'older_than', older_than, 'floors', coalesce(floors, '{}')));
    END IF;
    RETURN NEXT;
END
$body$;
