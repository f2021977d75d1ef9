-- Places an order.
-- $1 text    customer
-- $2 text    day
-- $3 bigint  total, in cents
INSERT INTO shop.orders (customer, day, total)
VALUES ($1::text, $2::text::date, $3::bigint)
RETURNING id
