-- Adds a slice of orders to their days, and notes the deliveries, in order.
-- $1 text[]    days
-- $2 bigint[]  totals
-- $3 text      consumer
-- $4 bigint[]  ids of the events
WITH delivery AS (
    INSERT INTO shop.deliveries (consumer, id)
    SELECT $3::text, e.id
    FROM unnest($4::bigint[]) WITH ORDINALITY AS e (id, place)
    ORDER BY e.place
)
INSERT INTO shop.revenue_per_day AS r (day, orders, total)
SELECT o.day::date, count(*), sum(o.total)
FROM unnest($1::text[], $2::bigint[]) AS o (day, total)
GROUP BY o.day::date
ON CONFLICT ON CONSTRAINT revenue_per_day_pkey
DO UPDATE SET orders = r.orders + excluded.orders, total = r.total + excluded.total
