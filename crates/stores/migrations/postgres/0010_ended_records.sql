-- 1 where the metadata has `last_place` among its own keys: the sandbox has versions, and its owner finds them through the record.
-- A search in the text would also find keys that a user put into an object of the metadata.
ALTER TABLE sandboxes ADD COLUMN has_versions BIGINT NOT NULL DEFAULT 0;
-- PostgreSQL reads no JSON with a NUL in a string, and users may have stored one.
UPDATE sandboxes SET has_versions = 1
    WHERE (CAST(REPLACE(metadata, '\u0000', '\u0001') AS JSON) -> 'last_place') IS NOT NULL;
-- What a user decides the size of. The limit `ended_records_mb` is about the sum of it.
ALTER TABLE sandboxes ADD COLUMN bytes BIGINT GENERATED ALWAYS AS (OCTET_LENGTH(spec) + OCTET_LENGTH(metadata)) STORED;
CREATE INDEX sandboxes_ended_bytes ON sandboxes (account_id, state, bytes) WHERE state = 'terminated';
CREATE INDEX sandboxes_ended_plain ON sandboxes (account_id, ended_at, id) WHERE state = 'terminated' AND has_versions = 0;
