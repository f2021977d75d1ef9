-- Who runs an event whose offer to a queue was ambiguous: the program that offered it, or who takes deliveries from the queue.
-- They may be different processes, and each may be restarted in between, so the first of them to write a row here has the event.
CREATE TABLE inorder.handoffs (
    -- Hand-offs of different queues and handlers have nothing to do with each other.
    scope    text        NOT NULL,
    -- The event's event_id.
    key      uuid        NOT NULL,
    -- Never changes: whoever finds the row was too late.
    taken_by text        NOT NULL,
    taken_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- When the direct path had run it. NULL: it still has to, whoever died.
    ran_at   timestamptz,
    CONSTRAINT handoffs_pkey PRIMARY KEY (scope, key),
    CONSTRAINT handoffs_scope_length CHECK (scope <> '' AND octet_length(scope) <= 200),
    CONSTRAINT handoffs_taken_by_known CHECK (taken_by IN ('direct', 'delivery')),
    CONSTRAINT handoffs_ran_directly CHECK (ran_at IS NULL OR taken_by = 'direct')
);
CREATE INDEX handoffs_taken_at ON inorder.handoffs (scope, taken_at);
CREATE INDEX handoffs_unfinished ON inorder.handoffs (scope, taken_at) WHERE taken_by = 'direct' AND ran_at IS NULL;
