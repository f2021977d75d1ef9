-- Lets a role append, by INSERT, COPY and the functions, and nothing else: it reads nothing, and chooses no id.
-- INSERT is granted column by column: a grant on the table would allow COPY and OVERRIDING SYSTEM VALUE to write ids.
CREATE OR REPLACE FUNCTION inorder.grant_producer(role name)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $body$
DECLARE
    log CONSTANT regclass := 'inorder.events'::regclass;
BEGIN
    -- Without the right to grant, GRANT would only warn.
    IF NOT pg_has_role((SELECT c.relowner FROM pg_class AS c WHERE c.oid = log), 'USAGE') THEN
        RAISE EXCEPTION 'only the owner of % may let roles append to it', log
            USING ERRCODE = 'insufficient_privilege';
    END IF;
    EXECUTE format('GRANT USAGE ON SCHEMA %s TO %I',
        (SELECT c.relnamespace::regnamespace FROM pg_class AS c WHERE c.oid = log), role);
    EXECUTE format('GRANT INSERT (%s) ON %s TO %I',
        (
            SELECT string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum)
            FROM pg_attribute AS a
            WHERE a.attrelid = log
                AND a.attnum > 0
                AND NOT a.attisdropped
                AND a.attidentity = ''
                AND a.attgenerated = ''
        ),
        log, role);
    EXECUTE format('GRANT EXECUTE ON FUNCTION %s, %s, %s, %s, %s TO %I',
        'inorder.append_events'::regproc, 'inorder.append'::regproc, 'inorder.record_pending'::regproc,
        'inorder.receive_events'::regproc, 'inorder.receive'::regproc, role);
END
$body$;
