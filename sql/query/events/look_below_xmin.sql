-- inorder events/look_below_xmin
-- The snapshot filter that loses events, for the mutant of that name: `inorder verify` must find it.
-- $1 uuid    process: whose epoch
-- $2 bigint  head: above this id
-- $3 bigint  limit
SELECT e.id, e.event_id, e.tenant_id, e.stream_type, e.stream_id, e.stream_version, e.stream_hash, e.event_type, e.schema_version,
       e.payload, e.metadata, e.correlation_id, e.causation_id, e.created_by, e.recorded_at, i.epoch
FROM inorder.instances AS i
LEFT JOIN LATERAL (
    SELECT *
    FROM inorder.events AS e
    WHERE id > $2::bigint
        AND e.xmin::text::bigint < pg_snapshot_xmin(pg_current_snapshot())::text::bigint
    ORDER BY id
    LIMIT $3::bigint
) AS e ON true
WHERE i.id = $1::uuid
ORDER BY e.id
