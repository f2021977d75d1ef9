-- inorder session/look_up
-- Has each prepared statement of the session find its rows by their keys, one after the other. A plan that was made while there were
-- few rows reads the whole table otherwise, and is kept when it has become large; and rows are locked in the order of the keys.
SET enable_seqscan = off;
SET enable_bitmapscan = off;
SET enable_hashjoin = off;
SET enable_mergejoin = off;
