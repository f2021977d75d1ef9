-- inorder migrations/record
-- Records what was applied. Only version 0 is ever recorded anew.
-- $1 int    version
-- $2 text   name
-- $3 text   checksum
-- $4 text   library
-- $5 jsonb  structure
INSERT INTO inorder.migrations (version, name, checksum, library, structure)
VALUES ($1::int, $2::text, $3::text, $4::text, $5::jsonb)
ON CONFLICT ON CONSTRAINT migrations_pkey DO UPDATE
SET name = excluded.name,
    checksum = excluded.checksum,
    library = excluded.library,
    structure = excluded.structure,
    applied_at = excluded.applied_at
WHERE migrations.version = 0
