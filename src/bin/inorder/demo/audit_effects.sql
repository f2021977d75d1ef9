-- The orders and the effects of the handlers, each beside an independent fold over the events.
WITH placed AS MATERIALIZED (
    SELECT e.id, (e.payload ->> 'order')::bigint AS "order", e.payload ->> 'customer' AS customer,
        (e.payload ->> 'day')::date AS day, (e.payload ->> 'total')::bigint AS total
    FROM inorder.events AS e
), receipt_due AS (
    SELECT p."order", p.total
    FROM placed AS p
    WHERE NOT EXISTS (SELECT FROM inorder.dead_letters AS d WHERE d.consumer = 'receipts' AND d.position = p.id)
)
SELECT
    (SELECT count(*) FROM placed) AS events,
    (SELECT coalesce(max(id), 0) FROM placed) - (SELECT count(*) FROM placed) AS holes,
    (SELECT count(*) FROM shop.orders) AS orders,
    (
        SELECT count(*)
        FROM shop.orders AS o
        FULL JOIN placed AS p ON p."order" = o.id AND p.customer = o.customer AND p.day = o.day AND p.total = o.total
        WHERE o.id IS NULL OR p."order" IS NULL
    ) AS orders_wrong,
    (
        SELECT count(*)
        FROM shop.orders_by_customer AS c
        FULL JOIN (SELECT customer, count(*) AS orders, sum(total) AS total FROM placed GROUP BY customer) AS f USING (customer)
        WHERE (c.orders, c.total) IS DISTINCT FROM (f.orders, f.total)
    ) AS customers_wrong,
    (
        SELECT count(*)
        FROM shop.revenue_per_day AS r
        FULL JOIN (SELECT day, count(*) AS orders, sum(total) AS total FROM placed GROUP BY day) AS f USING (day)
        WHERE (r.orders, r.total) IS DISTINCT FROM (f.orders, f.total)
    ) AS days_wrong,
    (
        SELECT count(*)
        FROM (SELECT "order", sum(total) AS total, count(*) AS copies FROM shop.receipts GROUP BY "order") AS r
        FULL JOIN receipt_due AS f USING ("order")
        WHERE (r.total, r.copies) IS DISTINCT FROM (f.total, 1)
    ) AS receipts_wrong
