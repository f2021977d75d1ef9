-- The log, the consumers' state rows, dead letters, live processes, the audit trail and the state of the log as a whole.
-- The schema itself and the table of migrations exist already: the migrator makes them.

-- The append-only log; it is the outbox. `payload` is json, not jsonb: what was appended is delivered byte for byte.
CREATE TABLE inorder.events (
    -- The place in the log. CACHE 1: a session that caches ids would hand out low ids late.
    id             bigint      GENERATED ALWAYS AS IDENTITY (CACHE 1 INCREMENT 1 NO CYCLE),
    -- The producer's idempotency key, and the name of the event outside the log.
    event_id       uuid        NOT NULL DEFAULT gen_random_uuid(),
    tenant_id      text        NOT NULL DEFAULT '',
    stream_type    text,
    stream_id      text,
    stream_version bigint,
    -- Stable across servers and versions, so that a partition keeps its events; an event without a stream is spread by its own id.
    stream_hash    int         NOT NULL GENERATED ALWAYS AS (
        ('x' || left(md5(coalesce(stream_type || '/' || stream_id, event_id::text)), 8))::bit(32)::int
    ) STORED,
    event_type     text        NOT NULL,
    schema_version int         NOT NULL DEFAULT 1,
    payload        json        NOT NULL,
    metadata       json        NOT NULL DEFAULT '{}',
    correlation_id uuid,
    causation_id   uuid,
    created_by     text,
    recorded_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT events_pkey PRIMARY KEY (id),
    CONSTRAINT events_event_id_key UNIQUE (event_id),
    CONSTRAINT events_stream_whole CHECK (
        (stream_type IS NULL) = (stream_id IS NULL) AND (stream_type IS NULL) = (stream_version IS NULL)
    ),
    CONSTRAINT events_stream_version_positive CHECK (stream_version > 0),
    CONSTRAINT events_event_type_named CHECK (event_type <> '')
);
CREATE UNIQUE INDEX events_stream_key
    ON inorder.events (tenant_id, stream_type, stream_id, stream_version)
    WHERE stream_id IS NOT NULL;

-- One state row per consumer, instance ('' when shared) and partition. Updates stay HOT: no index on what changes.
CREATE TABLE inorder.consumers (
    name            text        NOT NULL,
    instance        text        NOT NULL DEFAULT '',
    partition       int         NOT NULL DEFAULT 0,
    -- Names the row in pg_locks: advisory lock (oid of this table, lock_key).
    lock_key        int         NOT NULL GENERATED ALWAYS AS IDENTITY,
    kind            text        NOT NULL,
    revision        int         NOT NULL DEFAULT 1,
    partitions      int         NOT NULL DEFAULT 1,
    -- NULL: every type.
    event_types     text[],
    max_attempts    int         NOT NULL DEFAULT 10,
    -- Id of the last event dealt with.
    position        bigint      NOT NULL,
    status          text        NOT NULL DEFAULT 'idle',
    attempts        int         NOT NULL DEFAULT 0,
    faults          int         NOT NULL DEFAULT 0,
    rearms          int         NOT NULL DEFAULT 0,
    next_attempt_at timestamptz,
    failed_event_id uuid,
    last_error      text,
    last_error_at   timestamptz,
    -- Events at or below this id that are gone were accepted as gone by an operator.
    accepted_to     bigint      NOT NULL DEFAULT 0,
    owner           uuid,
    lease_token     bigint      NOT NULL DEFAULT 0,
    lease_until     timestamptz,
    seen_at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    processed       bigint      NOT NULL DEFAULT 0,
    failed          bigint      NOT NULL DEFAULT 0,
    skipped         bigint      NOT NULL DEFAULT 0,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT consumers_pkey PRIMARY KEY (name, instance, partition),
    CONSTRAINT consumers_lock_key_key UNIQUE (lock_key),
    CONSTRAINT consumers_name_length CHECK (name <> '' AND octet_length(name) <= 200),
    CONSTRAINT consumers_kind_known CHECK (kind IN ('transactional', 'batch', 'effect', 'queued')),
    CONSTRAINT consumers_status_known CHECK (status IN ('idle', 'dead', 'disabled', 'expired')),
    CONSTRAINT consumers_partition_range CHECK (partition >= 0 AND partition < partitions),
    CONSTRAINT consumers_position_not_negative CHECK (position >= 0),
    CONSTRAINT consumers_counts_not_negative CHECK (attempts >= 0 AND faults >= 0 AND rearms >= 0)
) WITH (fillfactor = 40);

-- Each event, or range of events, that was passed over.
CREATE TABLE inorder.dead_letters (
    id          bigint      GENERATED ALWAYS AS IDENTITY,
    consumer    text        NOT NULL,
    instance    text        NOT NULL DEFAULT '',
    partition   int         NOT NULL DEFAULT 0,
    -- The event's id, or the first of a range.
    position    bigint      NOT NULL,
    -- The last of a range; NULL for one event.
    position_to bigint,
    -- NULL for a range.
    event_id    uuid,
    event_type  text,
    attempts    int         NOT NULL DEFAULT 0,
    error       text,
    reason      text        NOT NULL,
    state       text        NOT NULL DEFAULT 'open',
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_by  text        NOT NULL DEFAULT 'inorder',
    updated_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_by  text,
    CONSTRAINT dead_letters_pkey PRIMARY KEY (id),
    CONSTRAINT dead_letters_reason_known CHECK (
        reason IN ('skip_policy', 'operator_skip', 'rejected', 'exhausted', 'max_deliveries', 'pruned')
    ),
    CONSTRAINT dead_letters_state_known CHECK (state IN ('open', 'retry_requested', 'resolved', 'discarded')),
    CONSTRAINT dead_letters_range CHECK (position_to IS NULL OR position_to >= position),
    CONSTRAINT dead_letters_event_or_range CHECK ((event_id IS NULL) = (position_to IS NOT NULL))
);
CREATE INDEX dead_letters_unfinished
    ON inorder.dead_letters (consumer, instance, partition, id)
    WHERE state IN ('open', 'retry_requested');

-- One row per live process. Unlogged: a crash and a promotion empty it, and that is what ends an epoch.
CREATE UNLOGGED TABLE inorder.instances (
    id             uuid        NOT NULL,
    -- Random, told to nobody: a reader that gets it back reads the server and the history that it began with.
    epoch          uuid        NOT NULL,
    host           text        NOT NULL,
    pid            int         NOT NULL,
    version        text        NOT NULL,
    started_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    heartbeat_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The doorbell: an append notifies while this lies in the future.
    sleeping_until timestamptz,
    CONSTRAINT instances_pkey PRIMARY KEY (id)
) WITH (fillfactor = 40);

-- Every action of an operator.
CREATE TABLE inorder.audit (
    id         bigint      GENERATED ALWAYS AS IDENTITY,
    at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    by         text        NOT NULL,
    db_user    text        NOT NULL DEFAULT session_user,
    action     text        NOT NULL,
    consumer   text,
    instance   text,
    partition  int,
    why        text,
    before     jsonb,
    after      jsonb,
    CONSTRAINT audit_pkey PRIMARY KEY (id)
);
CREATE INDEX audit_consumer ON inorder.audit (consumer, id);

-- What the log as a whole needs; one row.
CREATE TABLE inorder.log_state (
    only_row     boolean NOT NULL DEFAULT true,
    -- Every event at or below this id was pruned.
    pruned_to    bigint  NOT NULL DEFAULT 0,
    -- Event type → highest id pruned, for prunes of some types only.
    pruned_types jsonb   NOT NULL DEFAULT '{}',
    -- The transaction that may delete from the log now.
    pruning      xid8,
    CONSTRAINT log_state_pkey PRIMARY KEY (only_row),
    CONSTRAINT log_state_one_row CHECK (only_row)
);
INSERT INTO inorder.log_state DEFAULT VALUES;
