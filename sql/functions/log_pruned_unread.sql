-- The range of ids in which a consumer at this position, with this filter, has events missing that it had not read: they
-- were pruned. NULL when nothing is missing, or an operator has accepted it.
CREATE OR REPLACE FUNCTION inorder.pruned_unread("position" bigint, accepted_to bigint, event_types text[])
RETURNS int8range
LANGUAGE sql
STABLE
AS $body$
    SELECT CASE WHEN p.pruned_to > greatest($1, $2) THEN int8range(greatest($1, $2) + 1, p.pruned_to, '[]') END
    FROM (
        SELECT CASE
            WHEN s.pruned_types = '{}' THEN s.pruned_to
            ELSE greatest(s.pruned_to, (
                SELECT max(t.value::bigint)
                FROM jsonb_each_text(s.pruned_types) AS t
                WHERE $3 IS NULL OR t.key = ANY ($3)
            ))
        END AS pruned_to
        FROM inorder.log_state AS s
    ) AS p
$body$;
