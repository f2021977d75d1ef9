-- inorder admin/blockers
-- Who is writing, and so may hold a hole open.
SELECT pid, prepared_gid, username, application, state, since, age_seconds, consumer, instance, partition, event_position, event_id, event_type
FROM inorder.blockers()
