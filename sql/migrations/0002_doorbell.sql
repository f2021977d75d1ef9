-- Asking `instances` in every append whether somebody sleeps cost an append several per cent. A sequence answers that without
-- a query: it changes outside of transactions, and a trigger's condition can read it.

-- Until when a process is marked as sleeping, the latest of them, in seconds since 1970. Never below the table's marks.
CREATE SEQUENCE inorder.doorbell AS bigint NO CYCLE;
-- The condition is evaluated with the producer's rights.
GRANT SELECT ON SEQUENCE inorder.doorbell TO PUBLIC;
