-- inorder session/rings
-- Do appends ring on this server? Not by default where transactions may be prepared: one that has notified cannot be.
SELECT CASE coalesce(current_setting('inorder.ring', true), '')
    WHEN 'on' THEN true
    WHEN 'off' THEN false
    ELSE current_setting('max_prepared_transactions')::int = 0
END AS rings
