-- inorder safe_head/sample
-- Who is writing, what is settled whoever is, and how far the ids above that go without a hole; 250,000 of them are looked at, which
-- takes a quarter of a second, and happens only until the safe head has been caught up with.
-- To be run after the highest id was read: whoever could still fill a hole below that one is among the writers.
-- $1 bigint  floor: up to here all is known to be settled
WITH known AS MATERIALIZED (
    SELECT greatest($1::bigint, inorder.settled(), 0) AS id
)
SELECT ARRAY(SELECT w.virtualtransaction FROM inorder.writers() AS w) AS writers,
       coalesce((
           SELECT max(n.id)
           FROM (
               SELECT a.id, k.id + row_number() OVER (ORDER BY a.id) AS without_a_hole
               FROM (
                   SELECT e.id
                   FROM inorder.events AS e
                   WHERE e.id > (SELECT id FROM known)
                   ORDER BY e.id
                   LIMIT 250000
               ) AS a
           ) AS n
           WHERE n.id = n.without_a_hole
       ), k.id) AS reached
FROM known AS k
