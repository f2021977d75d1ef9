-- The shop of the demonstration: what its producers write, and what its consumers make of the events.

CREATE SCHEMA shop;

-- A producer writes an order and its event in one transaction.
CREATE TABLE shop.orders (
    id       bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    customer text   NOT NULL,
    day      date   NOT NULL,
    total    bigint NOT NULL,
    CONSTRAINT orders_pkey PRIMARY KEY (id)
);

-- Every delivery that was committed, in the order in which the handlers were called. No key: the audit would see what came twice.
CREATE TABLE shop.deliveries (
    n        bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    consumer text   NOT NULL,
    id       bigint NOT NULL
);

CREATE TABLE shop.orders_by_customer (
    customer text   NOT NULL,
    orders   bigint NOT NULL,
    total    bigint NOT NULL,
    CONSTRAINT orders_by_customer_pkey PRIMARY KEY (customer)
) WITH (fillfactor = 50);

CREATE TABLE shop.revenue_per_day (
    day    date   NOT NULL,
    orders bigint NOT NULL,
    total  bigint NOT NULL,
    CONSTRAINT revenue_per_day_pkey PRIMARY KEY (day)
) WITH (fillfactor = 50);

CREATE TABLE shop.receipts (
    n       bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    "order" bigint NOT NULL,
    total   bigint NOT NULL
);
