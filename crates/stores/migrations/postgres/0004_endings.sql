-- Records of sandboxes that were ended stay: their names are free again, and lists of what lives pass them over.
DROP INDEX sandboxes_by_name;
CREATE UNIQUE INDEX sandboxes_by_name ON sandboxes (account_id, name) WHERE name IS NOT NULL AND state <> 'terminated';
DROP INDEX sandboxes_by_age;
CREATE INDEX sandboxes_by_age ON sandboxes (account_id, created_at, id) WHERE state <> 'terminated';
DROP INDEX sandboxes_of_node;
CREATE INDEX sandboxes_of_node ON sandboxes (node, created_at, id) WHERE state <> 'terminated';
-- Somebody wants the end of a turn, wherever it runs.
ALTER TABLE turns ADD COLUMN cancel_at BIGINT;
-- Calls that a server was killed in the midst of.
CREATE INDEX idempotency_keys_open ON idempotency_keys (busy_until) WHERE answer IS NULL;
