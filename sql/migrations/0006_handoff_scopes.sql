-- How long the rows of a hand-off's scope are kept, as the programs that hand off have it: so that whoever keeps house deletes no row
-- that such a program still counts on, also while none of them runs. A scope that is not here keeps its rows for 30 days.
CREATE TABLE inorder.handoff_scopes (
    scope           text        NOT NULL,
    -- Rows of the direct path, since it has run the event.
    keep            interval    NOT NULL,
    -- Rows of deliveries.
    keep_deliveries interval    NOT NULL,
    updated_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT handoff_scopes_pkey PRIMARY KEY (scope),
    CONSTRAINT handoff_scopes_scope_length CHECK (scope <> '' AND octet_length(scope) <= 200),
    CONSTRAINT handoff_scopes_keep_positive CHECK (keep > interval '0' AND keep_deliveries > interval '0')
);
