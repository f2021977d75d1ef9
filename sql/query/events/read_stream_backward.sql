-- inorder events/read_stream_backward
-- A page of a stream, backward. It ends early where what is stored takes more than a budget; `more` says so.
-- $1 text    tenant_id
-- $2 text    stream_type
-- $3 text    stream_id
-- $4 bigint  from: this version and below
-- $5 bigint  limit
-- $6 bigint  budget, in bytes as stored; the first event is there whatever it takes
SELECT id, event_id, tenant_id, stream_type, stream_id, stream_version, stream_hash, event_type, schema_version,
       payload, metadata, correlation_id, causation_id, created_by, recorded_at, more
FROM (
    SELECT *,
        coalesce(sum(pg_catalog.pg_column_size(payload) + pg_catalog.pg_column_size(metadata)) OVER before, 0) AS bytes,
        lead(true, 1, false) OVER (ORDER BY stream_version DESC) AS more
    FROM (
        SELECT *
        FROM inorder.events
        WHERE tenant_id = $1::text
            AND stream_type = $2::text
            AND stream_id = $3::text
            AND stream_version <= $4::bigint
        ORDER BY stream_version DESC
        LIMIT $5::bigint
    ) AS found
    WINDOW before AS (ORDER BY stream_version DESC ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
) AS page
WHERE bytes < $6::bigint
ORDER BY stream_version DESC
