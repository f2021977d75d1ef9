-- inorder admin/doctor
-- What is wrong with the log, and what to do.
-- $1 float8  patience: seconds
-- $2 float8  notifications: part of the server's queue, 0 to 1
SELECT looked_for, severity, finding, advice
FROM inorder.doctor(make_interval(secs => $1::float8), $2::float8)
