-- What the actions of operators share: finding, holding and describing state rows, and recording what was done.

-- How a row stands, in the one word that people see: a row that waits for its next attempt is idle in the table.
CREATE OR REPLACE FUNCTION inorder.admin_status(status text, next_attempt_at timestamptz)
RETURNS text
LANGUAGE sql
VOLATILE
AS $body$
    SELECT CASE WHEN $1 = 'idle' AND $2 > clock_timestamp() THEN 'waiting' ELSE $1 END
$body$;

-- Names a consumer in messages.
CREATE OR REPLACE FUNCTION inorder.admin_name(consumer text, instance text, partition int)
RETURNS text
LANGUAGE sql
IMMUTABLE
AS $body$
    SELECT format('consumer "%s"', $1)
        || CASE WHEN $2 <> '' THEN format(' instance "%s"', $2) ELSE '' END
        || CASE WHEN $3 IS NOT NULL THEN format(' partition %s', $3) ELSE '' END
$body$;

-- How the rows of a consumer stand, in words: why an action was refused.
CREATE OR REPLACE FUNCTION inorder.admin_standing(consumer text, instance text, partition int)
RETURNS text
LANGUAGE sql
VOLATILE
AS $body$
    SELECT string_agg(
        CASE WHEN c.partitions > 1 THEN format('partition %s is ', c.partition) ELSE 'it is ' END
            || inorder.admin_status(c.status, c.next_attempt_at)
            || CASE WHEN c.status = 'idle' AND c.next_attempt_at > clock_timestamp()
                THEN format(' (%s of %s attempts failed, the next is due at %s)', c.attempts, c.max_attempts,
                    date_trunc('second', c.next_attempt_at))
                ELSE '' END,
        ', ' ORDER BY c.partition
    )
    FROM inorder.consumers AS c
    WHERE c.name = $1 AND c.instance = $2 AND ($3 IS NULL OR c.partition = $3)
$body$;

-- Raises IO003 where no row has this name, instance and partition, saying which there are.
CREATE OR REPLACE FUNCTION inorder.admin_known(consumer text, instance text, partition int)
RETURNS void
LANGUAGE plpgsql
VOLATILE
AS $body$
#variable_conflict use_column
DECLARE
    there text;
BEGIN
    IF EXISTS (
        SELECT FROM inorder.consumers AS c
        WHERE c.name = admin_known.consumer AND c.instance = admin_known.instance
            AND (admin_known.partition IS NULL OR c.partition = admin_known.partition)
    ) THEN
        RETURN;
    END IF;
    SELECT string_agg(c.partition::text, ', ' ORDER BY c.partition) INTO there
    FROM inorder.consumers AS c
    WHERE c.name = admin_known.consumer AND c.instance = admin_known.instance;
    IF there IS NOT NULL THEN
        RAISE EXCEPTION '% has no partition %', inorder.admin_name(consumer, instance, NULL), admin_known.partition
            USING ERRCODE = 'IO003', HINT = format('its partitions are %s', there);
    END IF;
    SELECT string_agg(i.called, ', ' ORDER BY i.called) INTO there
    FROM (
        SELECT DISTINCT CASE c.instance WHEN '' THEN 'the shared one' ELSE format('"%s"', c.instance) END AS called
        FROM inorder.consumers AS c
        WHERE c.name = admin_known.consumer
        ORDER BY called
        LIMIT 20
    ) AS i;
    IF there IS NOT NULL THEN
        RAISE EXCEPTION 'consumer "%" has no instance "%"', consumer, instance
            USING ERRCODE = 'IO003', HINT = format('name one of its instances: %s', there);
    END IF;
    SELECT string_agg(n.called, ', ' ORDER BY n.called) INTO there
    FROM (SELECT DISTINCT format('"%s"', c.name) AS called FROM inorder.consumers AS c ORDER BY called LIMIT 20) AS n;
    RAISE EXCEPTION 'no consumer "%" is registered', consumer
        USING ERRCODE = 'IO003',
            HINT = coalesce('registered are ' || there, 'none is; a consumer is registered when its dispatcher starts');
END
$body$;

-- The sessions that hold consumers' rows: a pass, and an operator's action, take the row and then the advisory lock of its key.
CREATE OR REPLACE FUNCTION inorder.admin_holders()
RETURNS TABLE (lock_key int, pid int)
LANGUAGE sql
VOLATILE
AS $body$
    SELECT l.objid::int, l.pid
    FROM pg_catalog.pg_locks AS l
    WHERE l.locktype = 'advisory'
        AND l.database = (SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = current_database())
        AND l.classid = 'inorder.consumers'::regclass
        AND l.objsubid = 2
        AND l.granted
$body$;

-- A session in words. What another role's session does is hidden from a role without pg_read_all_stats.
CREATE OR REPLACE FUNCTION inorder.admin_session(pid int)
RETURNS text
LANGUAGE sql
VOLATILE
AS $body$
    SELECT format('pid %s', $1) || coalesce((
        SELECT format(' (application "%s", %s)', a.application_name,
            CASE
                WHEN a.state IS NULL THEN 'since when is hidden for lack of pg_read_all_stats'
                ELSE format('%s, in its transaction since %s', a.state, date_trunc('second', a.xact_start))
            END)
        FROM pg_catalog.pg_stat_activity AS a
        WHERE a.pid = $1
    ), '')
$body$;

-- Locks the rows of a consumer, in the order of their key, and answers them as they are under the lock. `statuses` narrows
-- them to the rows that the action is for, so that it never waits for others. A row that stays held raises IO005;
-- `force` terminates the holder instead. The advisory lock then makes us visible as the holder.
-- Order of locks everywhere: log_state, state rows by key, advisory locks, dead letters.
CREATE OR REPLACE FUNCTION inorder.admin_hold(
    consumer text, instance text, partition int, force boolean, statuses text[] DEFAULT NULL
)
RETURNS SETOF inorder.consumers
LANGUAGE plpgsql
VOLATILE
SET lock_timeout = '3s'
SET jit = off
AS $body$
#variable_conflict use_column
DECLARE
    held   inorder.consumers[];
    holder record;
    tries  CONSTANT int := 10;
BEGIN
    IF pg_catalog.current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'an action on a consumer needs READ COMMITTED, not %',
            upper(pg_catalog.current_setting('transaction_isolation'))
            USING ERRCODE = 'IO004', HINT = 'BEGIN ISOLATION LEVEL READ COMMITTED';
    END IF;
    PERFORM inorder.admin_known(consumer, instance, partition);
    FOR try IN 1..tries LOOP
        BEGIN
            IF force THEN
                PERFORM pg_catalog.set_config('lock_timeout', '300ms', true);
            END IF;
            SELECT array_agg(l.held) INTO held
            FROM (
                SELECT c AS held
                FROM inorder.consumers AS c
                WHERE c.name = admin_hold.consumer AND c.instance = admin_hold.instance
                    AND (admin_hold.partition IS NULL OR c.partition = admin_hold.partition)
                    AND (admin_hold.statuses IS NULL OR c.status = ANY (admin_hold.statuses))
                ORDER BY c.name, c.instance, c.partition
                FOR NO KEY UPDATE
            ) AS l;
            PERFORM pg_advisory_xact_lock('inorder.consumers'::regclass::oid::int, h.lock_key)
            FROM unnest(held) AS h;
            -- Whoever leased a row writes it no more. What it is running keeps its claim in the ledger.
            UPDATE inorder.consumers AS c
            SET lease_token = nextval('inorder.fencing'), lease_until = NULL
            FROM unnest(held) AS h
            WHERE c.lock_key = h.lock_key AND c.lease_until IS NOT NULL;
            EXIT;
        EXCEPTION WHEN lock_not_available THEN
            -- Not every holder has the advisory lock: a row locked by hand shows by the transaction in its xmax.
            FOR holder IN
                SELECT c.partition, c.partitions, h.pid
                FROM inorder.consumers AS c
                LEFT JOIN LATERAL (
                    SELECT a.pid FROM inorder.admin_holders() AS a WHERE a.lock_key = c.lock_key
                    UNION
                    SELECT l.pid
                    FROM pg_catalog.pg_locks AS l
                    WHERE l.locktype = 'transactionid' AND l.transactionid = c.xmax AND l.granted
                ) AS h ON h.pid <> pg_backend_pid()
                WHERE c.name = admin_hold.consumer AND c.instance = admin_hold.instance
                    AND (admin_hold.partition IS NULL OR c.partition = admin_hold.partition)
                    AND (admin_hold.statuses IS NULL OR c.status = ANY (admin_hold.statuses))
                ORDER BY h.pid IS NULL, c.partition
            LOOP
                IF NOT force OR try = tries THEN
                    RAISE EXCEPTION '% is held by %',
                        inorder.admin_name(consumer, instance, CASE WHEN holder.partitions > 1 THEN holder.partition END),
                        coalesce(inorder.admin_session(holder.pid), 'another session')
                        USING ERRCODE = 'IO005', HINT = 'try again in a moment, or with force, which terminates that session';
                ELSIF holder.pid IS NOT NULL THEN
                    PERFORM pg_terminate_backend(holder.pid, 2000);
                END IF;
            END LOOP;
        END;
    END LOOP;
    RETURN QUERY SELECT * FROM unnest(held);
END
$body$;

-- Wakes the dispatchers, so that they look at once. The channel is that of the doorbell.
CREATE OR REPLACE FUNCTION inorder.admin_ring()
RETURNS void
LANGUAGE sql
VOLATILE
AS $body$
    SELECT pg_notify('inorder_' || md5(n.nspname), 'consumers')
    FROM pg_catalog.pg_class AS c
    JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    WHERE c.oid = 'inorder.consumers'::regclass
$body$;

-- Records what was done, wakes the dispatchers where it was done to a consumer, and answers the audit row, which is what every action answers.
CREATE OR REPLACE FUNCTION inorder.admin_record(
    action text, "by" text, why text, consumer text, instance text, partition int, before jsonb, after jsonb
)
RETURNS inorder.audit
LANGUAGE plpgsql
VOLATILE
AS $body$
#variable_conflict use_column
DECLARE
    recorded inorder.audit;
BEGIN
    INSERT INTO inorder.audit ("by", action, consumer, instance, partition, why, before, after)
    VALUES (coalesce(nullif(admin_record.by, ''), session_user), admin_record.action, admin_record.consumer,
        admin_record.instance, admin_record.partition, admin_record.why, admin_record.before, admin_record.after)
    RETURNING * INTO recorded;
    IF admin_record.consumer IS NOT NULL THEN
        PERFORM inorder.admin_ring();
    END IF;
    RETURN recorded;
END
$body$;
