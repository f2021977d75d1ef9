-- inorder migrations/create
-- What was applied to this schema. Version 0 is the bundle of functions and triggers, which is replaced as a whole.
CREATE TABLE inorder.migrations (
    version    int         NOT NULL,
    name       text        NOT NULL,
    -- SHA-256 of the text.
    checksum   text        NOT NULL,
    -- The version of inorder that applied it: an older one does not replace the functions of a newer one.
    library    text        NOT NULL,
    -- Of version 0: every table, column, constraint, index, sequence, function and trigger of ours, as it was then.
    structure  jsonb,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT migrations_pkey PRIMARY KEY (version),
    CONSTRAINT migrations_version_not_negative CHECK (version >= 0)
)
