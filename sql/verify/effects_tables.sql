-- inorder verify/effects_tables
-- Everything that is ever written to the ledger and to the rows of effect consumers, by whom and when, and what was run.
CREATE TABLE inorder.verify_claims (
    n           bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    who         text        NOT NULL DEFAULT current_setting('application_name'),
    handler     text        NOT NULL,
    event_id    uuid        NOT NULL,
    token       bigint      NOT NULL,
    status      text        NOT NULL,
    lease_until timestamptz
);
CREATE TABLE inorder.verify_leases (
    n           bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    who         text        NOT NULL DEFAULT current_setting('application_name'),
    name        text        NOT NULL,
    instance    text        NOT NULL,
    partition   int         NOT NULL,
    lease_token bigint      NOT NULL
);
CREATE FUNCTION inorder.verify_claim() RETURNS trigger
LANGUAGE plpgsql
AS $body$
BEGIN
    INSERT INTO inorder.verify_claims (handler, event_id, token, status, lease_until)
    VALUES (NEW.handler, NEW.event_id, NEW.token, NEW.status, NEW.lease_until);
    RETURN NULL;
END
$body$;
CREATE FUNCTION inorder.verify_lease() RETURNS trigger
LANGUAGE plpgsql
AS $body$
BEGIN
    INSERT INTO inorder.verify_leases (name, instance, partition, lease_token)
    VALUES (NEW.name, NEW.instance, NEW.partition, NEW.lease_token);
    RETURN NULL;
END
$body$;
CREATE TRIGGER ledger_verify_claim
    AFTER INSERT OR UPDATE ON inorder.ledger
    FOR EACH ROW EXECUTE FUNCTION inorder.verify_claim();
CREATE TRIGGER consumers_verify_lease
    AFTER UPDATE ON inorder.consumers
    FOR EACH ROW WHEN (NEW.kind = 'effect') EXECUTE FUNCTION inorder.verify_lease();
CREATE TABLE inorder.verify_runs (
    handler  text        NOT NULL,
    event_id uuid        NOT NULL,
    number   bigint      NOT NULL,
    started  timestamptz NOT NULL,
    accepted boolean     NOT NULL
);
