-- inorder admin/log_progress
-- How the log as a whole stands.
SELECT head, safe_head, hole, writers, pruned_to, pruned_types
FROM inorder.log_progress()
