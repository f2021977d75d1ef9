-- inorder admin/discard_dead_letters
-- Settles all dead letters that fit: one bounded step. NULL fits every letter.
-- $1  text         consumer
-- $2  text         instance
-- $3  text         event_type
-- $4  text         reason
-- $5  text         error: words that are in it
-- $6  bigint       from_id
-- $7  bigint       to_id
-- $8  text         state
-- $9  int          max_letters
-- $10 timestamptz  stop_at
-- $11 text         by: NULL for the session's user
-- $12 text         why
SELECT letters, left_out, more
FROM inorder.discard_dead_letters(
    consumer => $1::text, instance => $2::text, event_type => $3::text, reason => $4::text, error => $5::text, from_id => $6::bigint,
    to_id => $7::bigint, state => $8::text, max_letters => $9::int, stop_at => $10::timestamptz, by => $11::text, why => $12::text
)
