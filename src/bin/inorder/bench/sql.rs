//! The statements that the measurements are made with. Names of schemas are made by us and need no quotes.

/// What the server is like.
pub(crate) const ABOUT: &str = "SELECT current_setting('server_version') AS server, current_setting('fsync')::boolean AS fsync, \
     current_setting('synchronous_commit') AS synchronous_commit, current_setting('shared_buffers') AS shared_buffers";

pub(crate) const TRACK_STATEMENTS: &str = "CREATE EXTENSION IF NOT EXISTS pg_stat_statements";
pub(crate) const TRY_STATEMENTS: &str = "SELECT FROM pg_stat_statements LIMIT 1";

/// Counts the statements of sessions to come, on a server that was started without counting.
pub(crate) fn count_statements(database: &str) -> String {
    format!("ALTER DATABASE {database} SET pg_stat_statements.track = 'top'")
}

/// Statements of all sessions of a database.
/// $1 text  database
pub(crate) const STATEMENTS: &str = "SELECT coalesce(sum(s.calls), 0)::bigint AS statements \
     FROM pg_stat_statements AS s JOIN pg_database AS d ON d.oid = s.dbid WHERE d.datname = $1::text";

/// Transactions of a database that its sessions have reported.
/// $1 text  database
pub(crate) const TRANSACTIONS: &str =
    "SELECT xact_commit + xact_rollback AS statements FROM pg_stat_database WHERE datname = $1::text";

pub(crate) const WAL: &str = "SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::float8 AS bytes";

/// Sessions in a database.
/// $1 text  database
pub(crate) const SESSIONS: &str = "SELECT count(*) AS sessions FROM pg_stat_activity WHERE datname = $1::text AND backend_type = 'client backend'";

pub(crate) fn drop_triggers(schema: &str) -> String {
    format!("DROP TRIGGER events_ring ON {schema}.events; DROP TRIGGER events_append_only ON {schema}.events")
}

pub(crate) fn drop_schema(schema: &str) -> String {
    format!("DROP SCHEMA {schema} CASCADE")
}

/// A bare insert of one event.
/// $1 text  event_type
/// $2 text  payload
pub(crate) fn insert(schema: &str) -> String {
    format!("INSERT INTO {schema}.events (event_type, payload) VALUES ($1::text, $2::text::json)")
}

/// The same, answering the id.
pub(crate) fn insert_returning(schema: &str) -> String {
    format!("{} RETURNING id", insert(schema))
}

/// The same with a notification in its transaction, naming the id.
pub(crate) fn insert_notifying(schema: &str) -> String {
    format!(
        "WITH appended AS ({}) SELECT id, pg_notify('{schema}', id::text) FROM appended",
        insert_returning(schema)
    )
}

/// One event through the SQL function.
pub(crate) fn append_function(schema: &str) -> String {
    format!("SELECT id FROM {schema}.append($1::text, $2::text::json)")
}

/// Takes a snapshot, and keeps it until the transaction ends.
pub(crate) const HOLD_SNAPSHOT: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class";

/// Stores events of about 150 bytes of JSON.
/// $1 bigint  how many
pub(crate) fn fill(schema: &str) -> String {
    format!(
        "INSERT INTO {schema}.events (event_type, payload) \
         SELECT 'order.placed', json_build_object('order', n, 'customer', 'customer-' || n % 1000, 'total', (n % 10000) / 100.0, \
             'currency', 'EUR', 'note', repeat(chr(97 + (n % 26)::int), 40)) \
         FROM generate_series(1, $1::bigint) AS n"
    )
}

pub(crate) fn vacuum(schema: &str) -> String {
    format!("VACUUM (ANALYZE, FREEZE) {schema}.events")
}

pub(crate) fn count_and_size(schema: &str) -> String {
    format!(
        "SELECT count(*) AS events, avg(octet_length(payload::text))::float8 AS bytes, max(id) AS last FROM {schema}.events"
    )
}

const COLUMNS: &str = "id, event_id, tenant_id, stream_type, stream_id, stream_version, stream_hash, event_type, schema_version, \
     payload, metadata, correlation_id, causation_id, created_by, recorded_at";

/// A page of the log.
/// $1 bigint  above this id
/// $2 bigint  limit
pub(crate) fn page(schema: &str) -> String {
    format!("SELECT {COLUMNS} FROM {schema}.events WHERE id > $1::bigint ORDER BY id LIMIT $2::bigint")
}

/// The whole log.
pub(crate) fn stream(schema: &str) -> String {
    format!("SELECT {COLUMNS} FROM {schema}.events ORDER BY id")
}

/// One event.
/// $1 bigint  id
pub(crate) fn event(schema: &str) -> String {
    format!("SELECT {COLUMNS} FROM {schema}.events WHERE id = $1::bigint")
}

/// A consumer's position.
/// $1 text  consumer
pub(crate) fn position(schema: &str) -> String {
    format!("SELECT position FROM {schema}.consumers WHERE name = $1::text")
}

/// Where the effects of a transactional handler go.
pub(crate) fn create_effects(schema: &str) -> String {
    format!(
        "CREATE TABLE IF NOT EXISTS {schema}.effects (id bigint PRIMARY KEY, event_type text NOT NULL); \
         TRUNCATE {schema}.effects"
    )
}

/// One effect.
/// $1 bigint  id
/// $2 text    event_type
pub(crate) fn insert_effect(schema: &str) -> String {
    format!("INSERT INTO {schema}.effects (id, event_type) VALUES ($1::bigint, $2::text)")
}

pub(crate) fn count_effects(schema: &str) -> String {
    format!("SELECT count(*) AS effects FROM {schema}.effects")
}

/// Rows of the log that were read, in every way, and events written to it, as far as sessions have reported it.
/// $1 text  schema
pub(crate) const ROWS_READ: &str = "SELECT seq_tup_read + coalesce(idx_tup_fetch, 0) AS rows, n_tup_ins AS appended \
     FROM pg_stat_user_tables WHERE schemaname = $1::text AND relname = 'events'";

/// Is everything delivered that was stored, and all of it settled?
/// $1 text  handler
pub(crate) fn settled(schema: &str) -> String {
    format!(
        "SELECT (SELECT min(position) FROM {schema}.consumers WHERE name = $1::text) = (SELECT max(id) FROM {schema}.events) \
         AND NOT EXISTS (SELECT FROM {schema}.ledger WHERE handler = $1::text AND status IN ('pending', 'in_progress')) AS settled"
    )
}

pub(crate) fn done(schema: &str) -> String {
    format!("SELECT count(*) AS done FROM {schema}.ledger WHERE status = 'done'")
}

/// The floors' sessions find rows by their keys, too: other plans are made for few rows, and are slow when there are many.
pub(crate) const LOOK_UP: &str = "SET plan_cache_mode = force_generic_plan; SET enable_sort = off; SET jit = off; SET enable_seqscan = off; \
     SET enable_bitmapscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off";

/// A claim by hand, with a lease of 30 s, as ours.
/// $1 uuid    event_id
/// $2 text    handler
/// $3 bigint  position
pub(crate) fn claim(schema: &str) -> String {
    format!(
        "INSERT INTO {schema}.ledger (event_id, handler, status, token, lease_until, position) \
         VALUES ($1::uuid, $2::text, 'in_progress', nextval('{schema}.fencing'), clock_timestamp() + interval '30 s', $3::bigint) \
         RETURNING token"
    )
}

/// The same for several.
/// $1 uuid[]    event_ids
/// $2 text      handler
/// $3 bigint[]  positions
pub(crate) fn claim_batch(schema: &str) -> String {
    format!(
        "INSERT INTO {schema}.ledger (event_id, handler, status, token, lease_until, position) \
         SELECT a.event_id, $2::text, 'in_progress', nextval('{schema}.fencing'), clock_timestamp() + interval '30 s', a.position \
         FROM unnest($1::uuid[], $3::bigint[]) AS a (event_id, position) \
         RETURNING event_id, token"
    )
}

/// Settles a claim.
/// $1 uuid    event_id
/// $2 text    handler
/// $3 bigint  token
pub(crate) fn settle(schema: &str) -> String {
    format!(
        "UPDATE {schema}.ledger SET status = 'done', lease_until = NULL, updated_at = clock_timestamp() \
         WHERE event_id = $1::uuid AND handler = $2::text AND token = $3::bigint AND lease_until IS NOT NULL"
    )
}

/// The same for several.
/// $1 uuid[]    event_ids
/// $2 text      handler
/// $3 bigint[]  tokens
pub(crate) fn settle_batch(schema: &str) -> String {
    format!(
        "UPDATE {schema}.ledger AS l SET status = 'done', lease_until = NULL, updated_at = clock_timestamp() \
         FROM ( \
             SELECT u.event_id, u.token, $2::text AS handler FROM unnest($1::uuid[], $3::bigint[]) AS u (event_id, token) OFFSET 0 \
         ) AS s \
         WHERE l.event_id = s.event_id AND l.handler = s.handler AND l.token = s.token AND l.lease_until IS NOT NULL"
    )
}

/// Puts events into a queue.
/// $1 uuid[]    event_ids
/// $2 text      handler
/// $3 bigint[]  positions
pub(crate) fn enqueue(schema: &str) -> String {
    format!(
        "INSERT INTO {schema}.ledger (event_id, handler, status, position) \
         SELECT a.event_id, $2::text, 'pending', a.position \
         FROM unnest($1::uuid[], $3::bigint[]) AS a (event_id, position)"
    )
}

/// Claims what is due in a queue.
/// $1 text    handler
/// $2 bigint  limit
pub(crate) fn claim_due(schema: &str) -> String {
    format!(
        "WITH due AS ( \
             SELECT event_id, handler FROM {schema}.ledger \
             WHERE handler = $1::text AND status IN ('pending', 'in_progress') \
                 AND coalesce(lease_until, next_attempt_at, created_at) <= clock_timestamp() \
             ORDER BY coalesce(lease_until, next_attempt_at, created_at) \
             LIMIT $2::bigint \
             FOR NO KEY UPDATE SKIP LOCKED \
         ) \
         UPDATE {schema}.ledger AS l \
         SET status = 'in_progress', token = nextval('{schema}.fencing'), lease_until = clock_timestamp() + interval '30 s', \
             updated_at = clock_timestamp() \
         FROM due AS d WHERE l.event_id = d.event_id AND l.handler = d.handler \
         RETURNING l.event_id, l.token"
    )
}
