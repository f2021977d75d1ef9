-- Whose effects a consumer's are, in the ledger: all its partitions are one.
CREATE OR REPLACE FUNCTION inorder.ledger_handler(consumer text, instance text)
RETURNS text
LANGUAGE sql
IMMUTABLE
AS $body$
    SELECT $1 || CASE WHEN $2 = '' THEN '' ELSE '@' || $2 END
$body$;

-- An event that was passed over is run no more, until its dead letter is retried. Where it is being run at the moment, that ends first.
CREATE OR REPLACE FUNCTION inorder.ledger_give_up(consumer text, instance text, event_id uuid)
RETURNS void
LANGUAGE sql
VOLATILE
AS $body$
    UPDATE inorder.ledger AS l
    SET status = 'dead', next_attempt_at = NULL, updated_at = clock_timestamp()
    WHERE l.event_id = $3 AND l.handler = inorder.ledger_handler($1, $2) AND l.status = 'pending'
$body$;

-- Will a row that is not finished stay so? An effect consumer runs no event that all its partitions have passed, and nobody else
-- sweeps up after it. Where it is being run at the moment, that ends first.
CREATE OR REPLACE FUNCTION inorder.ledger_left_behind(entry inorder.ledger)
RETURNS boolean
LANGUAGE sql
STABLE
AS $body$
    SELECT $1.status IN ('pending', 'in_progress') AND coalesce($1.lease_until <= clock_timestamp(), true)
        AND coalesce((
            SELECT min(c.position) >= $1.position
            FROM inorder.consumers AS c
            WHERE c.kind = 'effect' AND inorder.ledger_handler(c.name, c.instance) = $1.handler
        ), false)
$body$;
