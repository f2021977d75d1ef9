-- Counts an order of a customer, and notes the delivery.
-- $1 text    customer
-- $2 bigint  total
-- $3 text    consumer
-- $4 bigint  id of the event
WITH delivery AS (
    INSERT INTO shop.deliveries (consumer, id)
    VALUES ($3::text, $4::bigint)
)
INSERT INTO shop.orders_by_customer AS c (customer, orders, total)
VALUES ($1::text, 1, $2::bigint)
ON CONFLICT ON CONSTRAINT orders_by_customer_pkey
DO UPDATE SET orders = c.orders + 1, total = c.total + excluded.total
