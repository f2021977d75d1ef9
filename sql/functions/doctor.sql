-- What goes wrong in practice, looked for in one go, and what to do about each. Nothing is changed. An empty answer is a healthy log.
--   looked_for  the kind of trouble, one word or two
--   severity    error: delivery, or what it rests on, is hurt now; warning: it will be, or somebody has to decide
-- `patience`: from which age on something that usually passes by itself is trouble. `notifications`: from which part of the
-- server's queue of notifications on, 0 to 1.
-- What a client alone can see (poolers, its clock, its version) is the tool's to look for.
CREATE OR REPLACE FUNCTION inorder.doctor(patience interval DEFAULT '1 minute', notifications double precision DEFAULT 0.1)
RETURNS TABLE (looked_for text, severity text, finding text, advice text)
LANGUAGE plpgsql
VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $body$
#variable_conflict use_column
DECLARE
    log  CONSTANT regclass := 'inorder.events'::regclass;
    ours CONSTANT oid := (SELECT c.relnamespace FROM pg_class AS c WHERE c.oid = log);
    head record;
BEGIN
    -- What the safe head rests on; each brings its remedy behind a semicolon.
    RETURN QUERY
    SELECT 'safe head', 'error', split_part(u, '; ', 1),
           format('nothing is delivered until this is mended%s', coalesce(': ' || nullif(substr(u, length(split_part(u, '; ', 1)) + 3), ''), ''))
    FROM unnest(inorder.unsafe()) AS u;

    RETURN QUERY
    SELECT 'triggers', 'error',
           format('trigger %s of %s.%s is %s', w.trigger, ours::regnamespace, w.relation, CASE WHEN t.oid IS NULL THEN 'missing' ELSE 'disabled' END)
               || w.meaning,
           CASE
               WHEN t.oid IS NULL
                   THEN format('DELETE FROM %s.migrations WHERE version = 0, then `inorder migrate` puts it back', ours::regnamespace)
               ELSE format('ALTER TABLE %s.%s ENABLE %sTRIGGER %s', ours::regnamespace, w.relation,
                   CASE w.trigger WHEN 'events_append_only' THEN 'ALWAYS ' ELSE '' END, w.trigger)
           END
    FROM (
        VALUES ('events', 'events_append_only', ': events can be changed and deleted'),
               ('events', 'events_ring', ': appends wake nobody, consumers find events when they poll'),
               ('instances', 'instances_set_doorbell', ': appends may wake nobody, consumers find events when they poll')
    ) AS w (relation, trigger, meaning)
    JOIN pg_class AS c ON c.relnamespace = ours AND c.relname = w.relation
    LEFT JOIN pg_trigger AS t ON t.tgrelid = c.oid AND t.tgname = w.trigger
    WHERE t.oid IS NULL OR t.tgenabled NOT IN ('O', 'A');

    SELECT * INTO head FROM inorder.log_progress();
    RETURN QUERY
    SELECT 'holes', 'error',
           format('the safe head stands at %s, %s below the head: %s has held it for %s%s', head.safe_head, head.head - head.safe_head,
               CASE WHEN b.prepared_gid IS NULL THEN format('pid %s (application "%s", %s)', b.pid, b.application, b.state)
                   ELSE format('prepared transaction ''%s''', b.prepared_gid) END,
               date_trunc('second', make_interval(secs => b.age_seconds)),
               CASE WHEN b.consumer IS NOT NULL THEN format(', a pass of consumer "%s"', b.consumer) ELSE '' END),
           CASE WHEN b.prepared_gid IS NULL
               THEN format('end it in its session, or SELECT pg_terminate_backend(%s); its appends are then rolled back', b.pid)
               ELSE format('COMMIT PREPARED %L or ROLLBACK PREPARED %1$L, whichever its coordinator decided', b.prepared_gid) END
    FROM inorder.blockers() AS b
    WHERE head.hole IS NOT NULL AND b.age_seconds > extract(epoch FROM patience);

    RETURN QUERY
    SELECT 'prepared transactions', 'warning',
           format('prepared transaction ''%s'' of %s was left behind %s ago', x.gid, x.owner, date_trunc('second', clock_timestamp() - x.prepared)),
           format('it keeps its locks, and vacuum from cleaning up: COMMIT PREPARED %L or ROLLBACK PREPARED %1$L', x.gid)
    FROM pg_prepared_xacts AS x
    WHERE x.database = current_database()
        AND x.prepared < clock_timestamp() - patience
        AND NOT (head.hole IS NOT NULL AND EXISTS (SELECT FROM inorder.blockers() AS b WHERE b.prepared_gid = x.gid));

    RETURN QUERY
    SELECT 'old snapshots', 'warning',
           format('pid %s (application "%s", %s) has had its transaction open for %s', a.pid, a.application_name, a.state,
               date_trunc('second', clock_timestamp() - a.xact_start)),
           format('vacuum cleans up nothing younger, in any table: let it end, or SELECT pg_terminate_backend(%s)', a.pid)
    FROM pg_stat_activity AS a
    WHERE a.datname = current_database()
        AND a.backend_xmin IS NOT NULL
        AND a.pid <> pg_backend_pid()
        AND a.backend_type = 'client backend'
        AND a.xact_start < clock_timestamp() - 10 * patience
        -- Who holds a hole was named above.
        AND NOT (head.hole IS NOT NULL AND EXISTS (SELECT FROM inorder.writers() AS w WHERE w.pid = a.pid));

    RETURN QUERY
    SELECT 'hidden sessions', 'warning', format('role %s does not see what sessions of other roles do', session_user),
           format('who holds a hole, and since when, stays hidden: GRANT pg_read_all_stats TO %I', session_user)
    WHERE NOT pg_has_role('pg_read_all_stats', 'USAGE');

    RETURN QUERY
    SELECT 'vacuum', 'warning', format('%s is off', s.name),
           format('our tables of state grow without end: ALTER SYSTEM SET %s = on, then SELECT pg_reload_conf()', s.name)
    FROM pg_settings AS s
    WHERE s.name IN ('autovacuum', 'track_counts') AND s.setting = 'off'
    UNION ALL
    SELECT 'vacuum', 'warning', format('autovacuum is off for %s', c.oid::regclass),
           format('ALTER TABLE %s RESET (autovacuum_enabled)', c.oid::regclass)
    FROM pg_class AS c
    WHERE c.relnamespace = ours AND c.relkind = 'r'
        AND EXISTS (
            SELECT FROM pg_options_to_table(c.reloptions) AS o
            WHERE o.option_name = 'autovacuum_enabled' AND NOT o.option_value::boolean
        )
    UNION ALL
    SELECT 'bloat', 'warning',
           format('%s has %s dead rows beside %s live ones', s.relid::regclass, s.n_dead_tup, s.n_live_tup),
           format('VACUUM %s; if they stay, something holds an old snapshot', s.relid::regclass)
    FROM pg_stat_all_tables AS s
    JOIN pg_class AS c ON c.oid = s.relid AND c.relnamespace = ours
    WHERE s.n_dead_tup > 10000 + s.n_live_tup
    UNION ALL
    -- Tables of a few rows, which every look reads: pages without rows cost each of them.
    SELECT 'bloat', 'warning',
           format('%s takes %s for %s rows', c.oid::regclass, pg_size_pretty(pg_relation_size(c.oid)), greatest(c.reltuples, 0)),
           format('in a quiet moment VACUUM FULL %s', c.oid::regclass)
    FROM pg_class AS c
    WHERE c.oid IN ('inorder.consumers'::regclass, 'inorder.instances'::regclass)
        AND pg_relation_size(c.oid) > 16 * 1024 * 1024 + 16 * 1024 * greatest(c.reltuples, 0);

    RETURN QUERY
    SELECT 'notifications', CASE WHEN q.used > 0.5 THEN 'error' ELSE 'warning' END,
           format('the server''s queue of notifications is %s %% full', round((100 * q.used)::numeric, 2)),
           coalesce(
               (
                   SELECT format('when it is full, commits that notify fail; it is emptied when the oldest listener reads on, perhaps %s',
                       string_agg(format('pid %s (application "%s", in its transaction for %s)', a.pid, a.application_name,
                           date_trunc('second', clock_timestamp() - a.xact_start)), ', ' ORDER BY a.xact_start))
                   FROM pg_stat_activity AS a
                   WHERE a.state LIKE 'idle in transaction%' AND a.query_start < clock_timestamp() - interval '1 second'
                   HAVING count(*) > 0
               ),
               'when it is full, commits that notify fail; it is emptied when every listener has read on: end sessions that LISTEN and stay in a transaction'
           )
    FROM (SELECT pg_notification_queue_usage() AS used) AS q
    WHERE q.used > notifications;

    RETURN QUERY
    SELECT 'times', 'warning',
           format('event %s (%s) was recorded at %s, which is %s ahead', f.id, f.event_type, f.recorded_at, f.recorded_at - clock_timestamp()),
           'a producer that writes recorded_at itself has a wrong clock or zone; leave the column to its default: prune and lag go by it'
    FROM (
        SELECT e.id, e.event_type, e.recorded_at
        FROM (SELECT n.id, n.event_type, n.recorded_at FROM inorder.events AS n ORDER BY n.id DESC LIMIT 1000) AS e
        WHERE isfinite(e.recorded_at) AND e.recorded_at > clock_timestamp() + patience
        ORDER BY e.id DESC
        LIMIT 1
    ) AS f;

    RETURN QUERY
    SELECT 'consumers', CASE WHEN p.status = 'dead' OR p.missing_from IS NOT NULL THEN 'error' ELSE 'warning' END,
           format('%s %s', n.called,
               CASE
                   WHEN p.missing_from IS NOT NULL THEN format('has not read events %s to %s, which were pruned', p.missing_from, p.missing_to)
                   WHEN p.status = 'dead' THEN format('is dead at event %s (%s): %s', p.failed_position, p.failed_event_type, p.last_error)
                   WHEN p.status = 'expired' THEN 'is expired: its process was not seen for days'
                   WHEN p.status = 'disabled' THEN format('is disabled, %s events behind', p.lag)
                   ELSE format('is %s events behind and nobody has run it for %s', p.lag, date_trunc('second', clock_timestamp() - c.updated_at))
               END),
           CASE
               WHEN p.missing_from IS NOT NULL THEN format('accept that they are gone: `inorder accept-pruned %s`; or reset it', p.name)
               WHEN p.status = 'dead' THEN format('repair what it complains of, then `inorder restart %s`; or pass over the event: `inorder skip %1$s --event %s --why …`',
                   p.name, p.failed_position)
               WHEN p.status = 'expired' THEN format('`inorder unregister %s --instance %s` if it will not come back', p.name, p.instance)
               WHEN p.status = 'disabled' THEN format('prune passes over what it has not read; `inorder enable %s`, or `inorder unregister %1$s`', p.name)
               ELSE 'start a process that runs it, or look at why those that should do not: `inorder instances` and their logs; a process with an older '
                   || format('revision does not run it; if it is no longer needed, it holds back prune: `inorder unregister %s`', p.name)
           END
    FROM inorder.progress() AS p
    JOIN inorder.consumers AS c ON c.name = p.name AND c.instance = p.instance AND c.partition = p.partition
    CROSS JOIN LATERAL (SELECT inorder.admin_name(p.name, p.instance, CASE WHEN p.partitions > 1 THEN p.partition END) AS called) AS n
    WHERE p.missing_from IS NOT NULL
        OR p.status IN ('dead', 'expired')
        OR p.status = 'disabled' AND p.lag > 0
        OR p.status = 'idle'
            AND p.position < head.safe_head
            AND p.holder_pid IS NULL
            AND coalesce(c.lease_until < clock_timestamp(), true)
            AND p.lag_seconds > extract(epoch FROM patience)
            AND c.updated_at < clock_timestamp() - patience;

    RETURN QUERY
    SELECT 'dead letters', 'warning', format('%s of %s are open, the oldest since %s', count(*),
               inorder.admin_name(d.consumer, d.instance, NULL), date_trunc('second', min(d.created_at))),
           format('they hold back prune: look at them, `inorder dead-letters list --consumer %s`, then retry or discard them', d.consumer)
    FROM inorder.dead_letters AS d
    WHERE d.state = 'open'
    GROUP BY d.consumer, d.instance;

    RETURN QUERY
    SELECT 'ledger', 'warning',
           format('%s%s rows of "%s" have been due for up to %s, and nobody takes them', count(*), CASE count(*) WHEN 10000 THEN ' or more' ELSE '' END,
               l.handler, date_trunc('second', clock_timestamp() - min(l.due_at))),
           'start a process that runs this handler, or let it run more at once; `inorder ledger list` shows the rows'
    FROM (SELECT DISTINCT r.handler FROM inorder.ledger AS r WHERE r.status IN ('pending', 'in_progress')) AS h
    CROSS JOIN LATERAL (
        SELECT r.handler, coalesce(r.lease_until, r.next_attempt_at, r.created_at) AS due_at
        FROM inorder.ledger AS r
        WHERE r.handler = h.handler
            AND r.status IN ('pending', 'in_progress')
            AND coalesce(r.lease_until, r.next_attempt_at, r.created_at) < clock_timestamp() - patience
        LIMIT 10000
    ) AS l
    GROUP BY l.handler;

    RETURN QUERY
    SELECT 'hand-offs', 'warning', format('%s events of scope "%s" were taken to be run directly and are not known to have been, the oldest since %s',
               count(*), h.scope, date_trunc('second', min(h.taken_at))),
           'whoever took them died, or has not said so: nobody else runs them; `inorder handoffs list`'
    FROM inorder.handoffs AS h
    WHERE h.taken_by = 'direct' AND h.ran_at IS NULL AND h.taken_at < clock_timestamp() - patience
    GROUP BY h.scope;

    RETURN QUERY
    SELECT 'versions', 'warning', format('processes of different versions are at work: %s',
               string_agg(format('%s of %s', v.processes, v.version), ', ' ORDER BY v.version)),
           'right while you deploy; otherwise some were forgotten: `inorder instances`'
    FROM (
        SELECT i.version, count(*) AS processes
        FROM inorder.instances AS i
        WHERE i.heartbeat_at > clock_timestamp() - interval '2 minutes'
        GROUP BY i.version
    ) AS v
    HAVING count(*) > 1;

    RETURN QUERY
    SELECT 'roles', 'warning', format('role %s lacks %s%s', r.role, array_to_string(r.lacking[:3], ', '),
               CASE WHEN cardinality(r.lacking) > 3 THEN format(' and %s more', cardinality(r.lacking) - 3) ELSE '' END),
           'as the owner of the schema: `inorder roles create`'
    FROM inorder.roles() AS r
    WHERE r.is_there AND r.lacking <> '{}';

    RETURN QUERY
    SELECT 'durability', 'warning', format('%s is off', s.name),
           CASE s.name
               WHEN 'synchronous_commit' THEN 'a crash of the server may lose the last commits, events among them, though they were delivered'
               ELSE 'a crash of the server may damage the database, the log with it'
           END || format(': ALTER SYSTEM SET %s = on', s.name)
    FROM pg_settings AS s
    WHERE s.name IN ('fsync', 'full_page_writes', 'synchronous_commit') AND s.setting = 'off';

    RETURN QUERY
    SELECT 'connections', 'warning', format('%s of %s connections of the server are taken', u.taken, u.most),
           'processes that start next find none: fewer or smaller pools, or ALTER SYSTEM SET max_connections'
    FROM (
        SELECT (SELECT count(*) FROM pg_stat_activity AS a WHERE a.backend_type = 'client backend') AS taken,
               current_setting('max_connections')::int AS most
    ) AS u
    WHERE u.taken > 0.9 * u.most;
END
$body$;
