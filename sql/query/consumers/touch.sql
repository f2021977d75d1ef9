-- inorder consumers/touch
-- Says that these rows are run by somebody.
-- $1 text[]  names
-- $2 text[]  instances
UPDATE inorder.consumers AS c
SET seen_at = clock_timestamp()
FROM unnest($1::text[], $2::text[]) AS ours (name, instance)
WHERE c.name = ours.name AND c.instance = ours.instance
    AND c.seen_at < clock_timestamp() - interval '30 minutes'
