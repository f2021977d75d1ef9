-- inorder ledger/claim_new
-- Claims what nobody has claimed before, for a consumer whose row is leased to us. The answer names what is ours; how the rest
-- stands, `claim` says.
-- $1 uuid[]   event_ids: sorted, as rows are locked in that order
-- $2 bigint[] positions: of the events in the log
-- $3 text     handler
-- $4 float8   lease: seconds
-- $5 uuid     owner: this process
-- $6 text     consumer: whose row must be leased, as the next three say
-- $7 text     instance
-- $8 int      partition
-- $9 bigint   lease_token
INSERT INTO inorder.ledger (event_id, handler, status, token, lease_until, position, owner)
SELECT a.event_id, $3::text, 'in_progress', nextval('inorder.fencing'),
       clock_timestamp() + make_interval(secs => $4::float8), a.position, $5::uuid
FROM unnest($1::uuid[], $2::bigint[]) AS a (event_id, position)
WHERE a.position > coalesce((SELECT f.floor FROM inorder.ledger_floors AS f WHERE f.handler = $3::text), 0)
    AND EXISTS (
        SELECT
        FROM inorder.consumers AS h
        WHERE h.name = $6::text AND h.instance = $7::text AND h.partition = $8::int
            AND h.lease_token = $9::bigint AND h.lease_until > clock_timestamp()
    )
ON CONFLICT ON CONSTRAINT ledger_pkey DO NOTHING
RETURNING event_id, token
