-- The processes that run dispatchers, or follow the log, and the state rows that each was the last to run: `holds` is true of those that it
-- runs at this moment. `state` is gone (its session has ended), silent (nothing was heard of it for two minutes), sleeping (appends ring for
-- it) or awake. A row is removed when a process stops, or when it was silent for an hour. At most 1,000 state rows of each are named.
CREATE OR REPLACE FUNCTION inorder.list_instances(max_rows int DEFAULT 1000)
RETURNS TABLE (
    id uuid, host text, pid int, version text, state text, started_at timestamptz, heartbeat_at timestamptz,
    heartbeat_age double precision, sleeping_until timestamptz, consumers jsonb
)
LANGUAGE sql
VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $body$
    WITH holder AS MATERIALIZED (
        SELECT DISTINCT h.lock_key FROM inorder.admin_holders() AS h
    )
    SELECT i.id, i.host, i.pid, i.version,
           CASE
               WHEN inorder.is_gone(i.id) THEN 'gone'
               WHEN i.heartbeat_at < clock_timestamp() - interval '2 minutes' THEN 'silent'
               WHEN i.sleeping_until > clock_timestamp() THEN 'sleeping'
               ELSE 'awake'
           END,
           i.started_at, i.heartbeat_at,
           greatest(extract(epoch FROM clock_timestamp() - i.heartbeat_at), 0)::double precision,
           i.sleeping_until, ran.consumers
    FROM inorder.instances AS i
    CROSS JOIN LATERAL (
        SELECT coalesce(
            jsonb_agg(
                jsonb_build_object('name', c.name, 'instance', c.instance, 'partition', c.partition, 'partitions', c.partitions,
                    'holds', c.holds)
                ORDER BY c.name, c.instance, c.partition
            ),
            '[]'
        ) AS consumers
        FROM (
            SELECT o.name, o.instance, o.partition, o.partitions,
                   coalesce(o.lease_until > clock_timestamp(), false)
                       OR EXISTS (SELECT FROM holder AS h WHERE h.lock_key = o.lock_key) AS holds
            FROM inorder.consumers AS o
            WHERE o.owner = i.id
            ORDER BY o.name, o.instance, o.partition
            LIMIT 1000
        ) AS c
    ) AS ran
    ORDER BY i.host, i.pid, i.id
    LIMIT max_rows
$body$;
