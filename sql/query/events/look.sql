-- inorder events/look
-- The next events above the safe head, holes and all, each with the epoch they were read in. One row without an event when there
-- is none, no row when the process is not entered. As little as possible: an event waits for it.
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
    ORDER BY id
    LIMIT $3::bigint
) AS e ON true
WHERE i.id = $1::uuid
ORDER BY e.id
