-- inorder instances/count
-- How many processes live, by the version that they run. They say so every half minute.
SELECT i.version, count(*) AS processes
FROM inorder.instances AS i
WHERE i.heartbeat_at > clock_timestamp() - interval '2 minutes'
GROUP BY i.version
ORDER BY i.version
