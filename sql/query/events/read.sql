-- inorder events/read
-- A page of the log above an id, up to a bound, in id order. It ends early where what is stored takes more than a budget; `more` says so.
-- $1 bigint  after: above this id
-- $2 bigint  bound: up to this id; the safe head
-- $3 bigint  limit
-- $4 bigint  budget, in bytes as stored; the first event is there whatever it takes
SELECT id, event_id, tenant_id, stream_type, stream_id, stream_version, stream_hash, event_type, schema_version,
       payload, metadata, correlation_id, causation_id, created_by, recorded_at, more
FROM (
    SELECT *,
        coalesce(sum(pg_catalog.pg_column_size(payload) + pg_catalog.pg_column_size(metadata)) OVER before, 0) AS bytes,
        lead(true, 1, false) OVER (ORDER BY id) AS more
    FROM (
        SELECT *
        FROM inorder.events
        WHERE id > $1::bigint
            AND id <= $2::bigint
        ORDER BY id
        LIMIT $3::bigint
    ) AS found
    WINDOW before AS (ORDER BY id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
) AS page
WHERE bytes < $4::bigint
ORDER BY id
