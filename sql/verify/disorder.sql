-- inorder verify/disorder
-- Effects that were not written in strictly increasing id order, and those of two holders at the same time.
SELECT lane, seq, id, event_id, before
FROM (
    SELECT lane, seq, id, event_id,
           lag(id) OVER in_order AS before,
           lag(seq) OVER in_order AS seq_before
    FROM inorder.verify_effects
    WINDOW in_order AS (PARTITION BY lane ORDER BY seq, id)
) AS f
WHERE id <= before OR seq = seq_before
ORDER BY lane, seq
