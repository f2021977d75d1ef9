-- inorder migrations/structure
-- Every table, column, constraint, index, sequence, function and trigger of a schema, and what matters about it, in
-- words that do not depend on the server's version.
-- $1 text  schema
WITH relation AS (
    SELECT c.oid, c.relname, c.relkind,
           CASE c.relpersistence WHEN 'p' THEN 'logged' ELSE 'not logged' END AS logged
    FROM pg_catalog.pg_class AS c
    JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    WHERE n.nspname = $1::text
), part AS (
    SELECT format('table %s', r.relname) AS object, r.logged AS state
    FROM relation AS r
    WHERE r.relkind = 'r'
    UNION ALL
    SELECT format('column %s.%s', r.relname, a.attname),
           concat_ws(' ', format_type(a.atttypid, a.atttypmod),
               CASE WHEN a.attnotnull THEN 'not null' END,
               CASE WHEN a.attidentity <> '' THEN 'identity' WHEN a.attgenerated <> '' THEN 'generated'
                   WHEN a.atthasdef THEN 'with a default' END)
    FROM relation AS r
    JOIN pg_catalog.pg_attribute AS a ON a.attrelid = r.oid
    WHERE r.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL
    SELECT format('constraint %s.%s', r.relname, c.conname),
           concat_ws(' ',
               CASE c.contype WHEN 'p' THEN 'primary key' WHEN 'u' THEN 'unique' WHEN 'c' THEN 'check'
                   WHEN 'f' THEN 'foreign key' ELSE 'exclusion' END,
               '(' || (
                   SELECT string_agg(a.attname, ', ' ORDER BY k.n)
                   FROM unnest(c.conkey) WITH ORDINALITY AS k (attnum, n)
                   JOIN pg_catalog.pg_attribute AS a ON a.attrelid = c.conrelid AND a.attnum = k.attnum
               ) || ')',
               CASE WHEN NOT c.convalidated THEN 'not valid' END,
               CASE WHEN c.condeferrable THEN 'deferrable' END)
    FROM relation AS r
    JOIN pg_catalog.pg_constraint AS c ON c.conrelid = r.oid
    WHERE c.contype IN ('p', 'u', 'c', 'f', 'x')
    UNION ALL
    SELECT format('index %s.%s', t.relname, r.relname),
           concat_ws(' ',
               CASE WHEN i.indisunique THEN 'unique' END,
               '(' || (
                   SELECT string_agg(coalesce(a.attname, 'expression'), ', ' ORDER BY k.n)
                   FROM unnest(i.indkey) WITH ORDINALITY AS k (attnum, n)
                   LEFT JOIN pg_catalog.pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
               ) || ')',
               CASE WHEN i.indpred IS NOT NULL THEN 'partial' END,
               CASE WHEN NOT i.indisvalid THEN 'invalid' END)
    FROM pg_catalog.pg_index AS i
    JOIN relation AS r ON r.oid = i.indexrelid
    JOIN relation AS t ON t.oid = i.indrelid
    WHERE t.relkind = 'r'
        AND NOT EXISTS (SELECT FROM pg_catalog.pg_constraint AS c WHERE c.conindid = i.indexrelid AND c.contype IN ('p', 'u', 'x'))
    UNION ALL
    SELECT format('sequence %s', r.relname),
           concat_ws(' ', 'cache', s.seqcache, 'increment', s.seqincrement, CASE WHEN s.seqcycle THEN 'cycle' END, r.logged)
    FROM pg_catalog.pg_sequence AS s
    JOIN relation AS r ON r.oid = s.seqrelid
    UNION ALL
    SELECT format('function %s(%s)', p.proname, replace(pg_get_function_identity_arguments(p.oid), quote_ident($1::text) || '.', '')),
           concat_ws(' ', 'body', left(md5(p.prosrc), 8), CASE WHEN p.prosecdef THEN 'security definer' END)
    FROM pg_catalog.pg_proc AS p
    JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
    WHERE n.nspname = $1::text
    UNION ALL
    SELECT format('trigger %s.%s', r.relname, t.tgname),
           concat_ws(' ',
               CASE t.tgenabled WHEN 'O' THEN 'enabled' WHEN 'A' THEN 'enabled always' WHEN 'R' THEN 'enabled in a replica'
                   ELSE 'disabled' END,
               'events', t.tgtype, 'calls', p.proname)
    FROM relation AS r
    JOIN pg_catalog.pg_trigger AS t ON t.tgrelid = r.oid
    JOIN pg_catalog.pg_proc AS p ON p.oid = t.tgfoid
    WHERE NOT t.tgisinternal
)
SELECT coalesce(jsonb_object_agg(object, state), '{}') AS structure
FROM part
