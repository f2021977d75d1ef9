-- Writes a receipt, and notes the delivery.
-- $1 bigint  order
-- $2 bigint  total
-- $3 text    consumer
-- $4 bigint  id of the event
WITH delivery AS (
    INSERT INTO shop.deliveries (consumer, id)
    VALUES ($3::text, $4::bigint)
)
INSERT INTO shop.receipts ("order", total)
VALUES ($1::bigint, $2::bigint)
