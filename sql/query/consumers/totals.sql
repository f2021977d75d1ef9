-- inorder consumers/totals
-- What every registered consumer has come to since it was registered, and whether events were pruned that it had not read.
SELECT c.name, c.instance, c.partition, c.processed, c.failed, c.skipped,
       inorder.pruned_unread(c.position, c.accepted_to, c.event_types) IS NOT NULL AS is_missing
FROM inorder.consumers AS c
ORDER BY c.name, c.instance, c.partition
