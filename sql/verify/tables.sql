-- inorder verify/tables
-- What the proof keeps beside the log: what consumers did, and what was to be done. No unique constraint: it would hide
-- what is to be found.
CREATE TABLE inorder.verify_lanes (
    -- The consumer row, as messages name it.
    lane        text   NOT NULL,
    name        text   NOT NULL,
    instance    text   NOT NULL,
    partition   int    NOT NULL,
    partitions  int    NOT NULL,
    -- NULL: every type.
    event_types text[],
    CONSTRAINT verify_lanes_pkey PRIMARY KEY (lane)
);
CREATE TABLE inorder.verify_effects (
    lane     text   NOT NULL,
    -- One more than the lane's highest when the effect was written: two holders at the same time would write one twice.
    seq      bigint NOT NULL,
    id       bigint NOT NULL,
    event_id uuid   NOT NULL,
    worker   text   NOT NULL
);
CREATE INDEX verify_effects_order ON inorder.verify_effects (lane, seq);
CREATE INDEX verify_effects_event ON inorder.verify_effects (lane, id);
CREATE TABLE inorder.verify_business (
    writer int    NOT NULL,
    n      bigint NOT NULL
);
