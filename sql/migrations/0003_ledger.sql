-- Effects that no transaction can undo: whoever runs one claims it here first, and so it is run once.

-- Fencing numbers: of two claims on the same row the later one has the higher number, also after the row was forgotten.
CREATE SEQUENCE inorder.fencing AS bigint CACHE 1 NO CYCLE;

-- Who ran what. A row is made by the first claim, or before it, by whoever wants the event to be handled.
CREATE TABLE inorder.ledger (
    event_id        uuid        NOT NULL,
    -- Whose effect; for an instance of a consumer `name@instance`.
    handler         text        NOT NULL,
    status          text        NOT NULL,
    attempts        int         NOT NULL DEFAULT 0,
    faults          int         NOT NULL DEFAULT 0,
    -- Of a pending row; NULL: at once.
    next_attempt_at timestamptz,
    -- Of a row in progress: from then on others may claim it.
    lease_until     timestamptz,
    -- The fencing number of the last claim; 0 before the first.
    token           bigint      NOT NULL DEFAULT 0,
    -- The event's id in the log; NULL for a key that is no event of ours.
    position        bigint,
    -- Rows of one stream are handled one after the other, by position; NULL: whenever.
    stream          text,
    -- The process of the last claim.
    owner           uuid,
    last_error      text,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT ledger_pkey PRIMARY KEY (event_id, handler),
    CONSTRAINT ledger_handler_length CHECK (handler <> '' AND octet_length(handler) <= 500),
    CONSTRAINT ledger_status_known CHECK (status IN ('pending', 'in_progress', 'done', 'dead')),
    CONSTRAINT ledger_leased_in_progress CHECK ((status = 'in_progress') = (lease_until IS NOT NULL)),
    CONSTRAINT ledger_counts_not_negative CHECK (attempts >= 0 AND faults >= 0)
) WITH (fillfactor = 70);
-- What is to be done, and when.
CREATE INDEX ledger_due
    ON inorder.ledger (handler, (coalesce(lease_until, next_attempt_at, created_at)))
    WHERE status IN ('pending', 'in_progress');
-- What a stream waits for.
CREATE INDEX ledger_stream
    ON inorder.ledger (handler, stream, position)
    WHERE status IN ('pending', 'in_progress') AND stream IS NOT NULL;

-- Up to where the rows of a handler that were done are forgotten: a claim at or below it could repeat an effect.
CREATE TABLE inorder.ledger_floors (
    handler    text        NOT NULL,
    floor      bigint      NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT ledger_floors_pkey PRIMARY KEY (handler)
);

-- While a process listens, its session holds this advisory lock, (oid of this table, lock): when nobody does any more, the process
-- is gone. NULL: it cannot be told that way, behind a pooler, say.
ALTER TABLE inorder.instances ADD COLUMN session_lock int;
