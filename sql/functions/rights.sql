-- Who may do what. Four kinds of roles, and for each the rights that it needs and no more:
--   producer  appends, receives, and records what queued consumers are to handle; reads nothing, and chooses no id
--   consumer  runs dispatchers, ledgers and hand-offs: reads the log, keeps the state of consumers. Handlers that append need
--             `producer` as well
--   monitor   sees how everything stands, and of an event no more than that it is there: no payload
--   admin     sees everything, and acts through the functions for operators, which write the audit trail; changes nothing by hand

-- The actions of operators. They run with the rights of the schema's owner, so that an operator needs none on the tables, and
-- no action goes past the audit trail.
CREATE OR REPLACE FUNCTION inorder.admin_actions()
RETURNS TABLE (action regprocedure)
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $body$
    SELECT p.oid::regprocedure
    FROM pg_proc AS p
    WHERE p.pronamespace = (SELECT c.relnamespace FROM pg_class AS c WHERE c.oid = 'inorder.events'::regclass)
        AND p.proname IN ('restart', 'skip_poison', 'disable', 'enable', 'reset', 'accept_pruned', 'unregister', 'repartition',
            'prune', 'retry_dead_letter', 'retry_dead_letters', 'discard_dead_letter', 'discard_dead_letters',
            'ledger_release', 'ledger_forget', 'ledger_prune', 'handoff_forget', 'handoffs_forget', 'handoff_prune')
$body$;

-- Gives the actions the owner's rights, and takes them from everybody else. Done whenever the functions are replaced.
CREATE OR REPLACE FUNCTION inorder.admin_secure_actions()
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $body$
DECLARE
    secured regprocedure;
BEGIN
    FOR secured IN SELECT a.action FROM inorder.admin_actions() AS a LOOP
        EXECUTE format('ALTER FUNCTION %s SECURITY DEFINER SET search_path = pg_catalog, pg_temp', secured);
        EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', secured);
    END LOOP;
END
$body$;

-- The rights of one kind of role: a privilege on a table (or, with `columns`, on these of its columns), a sequence or a function.
-- NULL: of every kind, with their names.
CREATE OR REPLACE FUNCTION inorder.rights(kind text DEFAULT NULL)
RETURNS TABLE (for_kind text, privilege text, sort text, object text, columns name[])
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $body$
    WITH given (for_kinds, privileges, object, columns) AS (
        VALUES
        -- Column by column: INSERT on the whole table would allow COPY and OVERRIDING SYSTEM VALUE to write ids.
        ('{producer}'::text[], '{INSERT}'::text[], 'inorder.events'::regclass, (
            SELECT array_agg(a.attname ORDER BY a.attnum)
            FROM pg_attribute AS a
            WHERE a.attrelid = 'inorder.events'::regclass
                AND a.attnum > 0
                AND NOT a.attisdropped
                AND a.attidentity = ''
                AND a.attgenerated = ''
        )),
        ('{consumer,admin}', '{SELECT}', 'inorder.events'::regclass, NULL),
        -- No payload, no metadata.
        ('{monitor}', '{SELECT}', 'inorder.events'::regclass,
            '{id,event_id,stream_hash,event_type,correlation_id,causation_id,recorded_at}'::name[]),
        ('{consumer,monitor,admin}', '{SELECT}', 'inorder.events_id_seq'::regclass, NULL),
        ('{consumer}', '{SELECT,INSERT,UPDATE}', 'inorder.consumers'::regclass, NULL),
        ('{monitor,admin}', '{SELECT}', 'inorder.consumers'::regclass, NULL),
        ('{consumer}', '{SELECT,INSERT,UPDATE}', 'inorder.dead_letters'::regclass, NULL),
        ('{monitor,admin}', '{SELECT}', 'inorder.dead_letters'::regclass, NULL),
        ('{consumer}', '{SELECT,INSERT,UPDATE,DELETE}', 'inorder.ledger'::regclass, NULL),
        ('{monitor,admin}', '{SELECT}', 'inorder.ledger'::regclass, NULL),
        ('{consumer}', '{SELECT,INSERT,UPDATE}', 'inorder.ledger_floors'::regclass, NULL),
        ('{monitor,admin}', '{SELECT}', 'inorder.ledger_floors'::regclass, NULL),
        ('{consumer}', '{SELECT,INSERT,UPDATE,DELETE}', 'inorder.handoffs'::regclass, NULL),
        ('{monitor,admin}', '{SELECT}', 'inorder.handoffs'::regclass, NULL),
        ('{consumer}', '{SELECT,INSERT,UPDATE}', 'inorder.handoff_scopes'::regclass, NULL),
        ('{monitor,admin}', '{SELECT}', 'inorder.handoff_scopes'::regclass, NULL),
        ('{consumer}', '{SELECT,INSERT,UPDATE,DELETE}', 'inorder.instances'::regclass, NULL),
        -- The epoch is told to nobody but its process.
        ('{monitor,admin}', '{SELECT}', 'inorder.instances'::regclass,
            '{id,host,pid,version,started_at,heartbeat_at,sleeping_until,session_lock}'::name[]),
        ('{consumer}', '{USAGE}', 'inorder.fencing'::regclass, NULL),
        ('{consumer,monitor,admin}', '{SELECT}', 'inorder.log_state'::regclass, NULL),
        -- Locking the row asks for UPDATE on a column of it: on the one that has one value.
        ('{consumer}', '{UPDATE}', 'inorder.log_state'::regclass, '{only_row}'::name[]),
        -- Rows of instances that expire are audited.
        ('{consumer}', '{INSERT}', 'inorder.audit'::regclass, NULL),
        ('{monitor,admin}', '{SELECT}', 'inorder.audit'::regclass, NULL),
        ('{consumer,monitor,admin}', '{SELECT}', 'inorder.migrations'::regclass, NULL)
    ),
    functions (for_kinds, names) AS (
        VALUES ('{producer}'::text[], '{append_events,append,record_pending,receive_events,receive}'::name[]),
               ('{consumer}', '{ledger_prune,handoff_prune}')
    ),
    every_right AS (
        SELECT k AS for_kind, p AS privilege, CASE c.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END AS sort,
               g.object::text AS object, g.columns
        FROM given AS g
        JOIN pg_class AS c ON c.oid = g.object
        CROSS JOIN unnest(g.for_kinds) AS k
        CROSS JOIN unnest(g.privileges) AS p
        UNION ALL
        SELECT k, 'EXECUTE', 'FUNCTION', p.oid::regprocedure::text, NULL
        FROM functions AS f
        JOIN pg_proc AS p ON p.proname = ANY (f.names)
            AND p.pronamespace = (SELECT c.relnamespace FROM pg_class AS c WHERE c.oid = 'inorder.events'::regclass)
        CROSS JOIN unnest(f.for_kinds) AS k
        UNION ALL
        SELECT 'admin', 'EXECUTE', 'FUNCTION', a.action::text, NULL
        FROM inorder.admin_actions() AS a
    )
    SELECT e.for_kind, e.privilege, e.sort, e.object, e.columns
    FROM every_right AS e
    WHERE $1 IS NULL OR e.for_kind = $1
$body$;

-- What a role lacks of the rights of a kind, in words; an empty array when it may do everything.
CREATE OR REPLACE FUNCTION inorder.lacking_rights(role name, kind text)
RETURNS text[]
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $body$
    SELECT coalesce(array_agg(l.lacking ORDER BY l.lacking), '{}')
    FROM (
        SELECT format('USAGE on schema %s', n.oid::regnamespace) AS lacking
        FROM pg_namespace AS n
        WHERE n.oid = (SELECT c.relnamespace FROM pg_class AS c WHERE c.oid = 'inorder.events'::regclass)
            AND NOT has_schema_privilege($1, n.oid, 'USAGE')
        UNION ALL
        SELECT 'membership in pg_read_all_stats: sessions of other roles are hidden'
        WHERE $2 IN ('monitor', 'admin') AND NOT pg_has_role($1, 'pg_read_all_stats', 'USAGE')
        UNION ALL
        SELECT format('%s on %s %s', r.privilege, lower(r.sort), r.object)
        FROM inorder.rights($2) AS r
        WHERE NOT CASE r.sort
            WHEN 'TABLE' THEN has_table_privilege($1, r.object, r.privilege)
                OR r.columns IS NOT NULL
                AND NOT EXISTS (
                    SELECT FROM unnest(r.columns) AS c WHERE NOT has_column_privilege($1, r.object, c, r.privilege)
                )
            WHEN 'SEQUENCE' THEN has_sequence_privilege($1, r.object, r.privilege)
            ELSE has_function_privilege($1, r.object, r.privilege)
        END
    ) AS l
$body$;

-- Gives a role the rights of a kind.
CREATE OR REPLACE FUNCTION inorder.admin_grant(role name, kind text)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $body$
DECLARE
    log  CONSTANT regclass := 'inorder.events'::regclass;
    "right" record;
BEGIN
    -- Without the right to grant, GRANT would only warn.
    IF NOT pg_has_role((SELECT c.relowner FROM pg_class AS c WHERE c.oid = log), 'USAGE') THEN
        RAISE EXCEPTION 'only the owner of % may grant what a % needs', log, kind
            USING ERRCODE = 'insufficient_privilege';
    END IF;
    EXECUTE format('GRANT USAGE ON SCHEMA %s TO %I',
        (SELECT c.relnamespace::regnamespace FROM pg_class AS c WHERE c.oid = log), role);
    FOR "right" IN SELECT * FROM inorder.rights(kind) LOOP
        EXECUTE format('GRANT %s%s ON %s %s TO %I', "right".privilege,
            (SELECT format(' (%s)', string_agg(quote_ident(c), ', ')) FROM unnest("right".columns) AS c HAVING count(*) > 0),
            "right".sort, "right".object, role);
    END LOOP;
END
$body$;

-- Lets a role append, by INSERT, COPY and the functions, and nothing else.
CREATE OR REPLACE FUNCTION inorder.grant_producer(role name)
RETURNS void
LANGUAGE sql
AS $body$
    SELECT inorder.admin_grant(role, 'producer')
$body$;

-- Lets a role run consumers.
CREATE OR REPLACE FUNCTION inorder.grant_consumer(role name)
RETURNS void
LANGUAGE sql
AS $body$
    SELECT inorder.admin_grant(role, 'consumer')
$body$;

-- Lets a role see how everything stands.
CREATE OR REPLACE FUNCTION inorder.grant_monitor(role name)
RETURNS void
LANGUAGE sql
AS $body$
    SELECT inorder.admin_grant(role, 'monitor')
$body$;

-- Lets a role see everything, and act.
CREATE OR REPLACE FUNCTION inorder.grant_admin(role name)
RETURNS void
LANGUAGE sql
AS $body$
    SELECT inorder.admin_grant(role, 'admin')
$body$;

-- The four roles of this schema, `<schema>_producer` and so on: which are there, what they lack, and who has them. Roles are the
-- cluster's; one that was granted nothing here belongs to another database's log, and is not there for this one.
CREATE OR REPLACE FUNCTION inorder.roles()
RETURNS TABLE (kind text, role text, is_there boolean, lacking text[], members text[])
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $body$
    SELECT k.kind, k.role, r.oid IS NOT NULL,
           CASE WHEN r.oid IS NOT NULL THEN inorder.lacking_rights(r.rolname, k.kind) ELSE '{}' END,
           ARRAY(
               SELECT m.rolname::text
               FROM pg_auth_members AS a
               JOIN pg_roles AS m ON m.oid = a.member
               WHERE a.roleid = r.oid
               ORDER BY m.rolname
           )
    FROM (
        SELECT o.place, o.kind, n.nspname || '_' || o.kind AS role, n.nspacl
        FROM pg_class AS c
        JOIN pg_namespace AS n ON n.oid = c.relnamespace
        CROSS JOIN unnest('{producer,consumer,monitor,admin}'::text[]) WITH ORDINALITY AS o (kind, place)
        WHERE c.oid = 'inorder.events'::regclass
    ) AS k
    LEFT JOIN pg_roles AS r ON r.rolname = k.role
        AND EXISTS (SELECT FROM aclexplode(k.nspacl) AS a WHERE a.grantee = r.oid AND a.privilege_type = 'USAGE')
    ORDER BY k.place
$body$;

-- Makes those of the four roles that are missing, and gives each its rights. They cannot log in: GRANT inorder_consumer TO shop.
CREATE OR REPLACE FUNCTION inorder.create_roles()
RETURNS TABLE (role text, created boolean)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $body$
DECLARE
    wanted record;
BEGIN
    FOR wanted IN SELECT * FROM inorder.roles() LOOP
        role := wanted.role;
        created := NOT wanted.is_there;
        IF created THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', wanted.role);
            EXCEPTION WHEN duplicate_object OR unique_violation THEN
                -- Roles are the cluster's: another database has just made it.
                created := false;
            WHEN insufficient_privilege THEN
                RAISE EXCEPTION 'role % may not create role %', current_user, wanted.role
                    USING ERRCODE = 'insufficient_privilege',
                        HINT = format('let somebody with CREATEROLE do it: CREATE ROLE %I NOLOGIN; then call this again', wanted.role);
            END;
        END IF;
        PERFORM inorder.admin_grant(wanted.role, wanted.kind);
        -- Who holds a hole, and since when, shows in other roles' sessions. Not everybody may grant that: roles() tells.
        IF wanted.kind IN ('monitor', 'admin') AND pg_has_role('pg_read_all_stats', 'USAGE WITH ADMIN OPTION') THEN
            EXECUTE format('GRANT pg_read_all_stats TO %I', wanted.role);
        END IF;
        RETURN NEXT;
    END LOOP;
END
$body$;

-- Gives those of the four roles that are there what they lack. Done whenever the functions are replaced, as a new version may
-- need new rights.
CREATE OR REPLACE FUNCTION inorder.admin_renew_rights()
RETURNS void
LANGUAGE sql
AS $body$
    SELECT inorder.admin_grant(r.role::name, r.kind)
    FROM inorder.roles() AS r
    WHERE r.is_there AND r.lacking <> '{}'
$body$;

SELECT inorder.admin_secure_actions();
SELECT inorder.admin_renew_rights();
