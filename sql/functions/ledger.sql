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
