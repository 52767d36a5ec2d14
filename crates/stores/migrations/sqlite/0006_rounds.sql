-- What background rounds read of a sandbox, so that they need neither its spec nor its metadata. Rows from before have NULL in
-- `timeouts` until their next change: of those the spec is read.
ALTER TABLE sandboxes ADD COLUMN timeouts TEXT;
ALTER TABLE sandboxes ADD COLUMN volume TEXT;
-- When it was ended for good, by the database's clock: retention counts from there.
ALTER TABLE sandboxes ADD COLUMN ended_at BIGINT;
UPDATE sandboxes SET ended_at = CAST(unixepoch('subsec') * 1000000 AS INTEGER) WHERE state = 'terminated';
CREATE INDEX sandboxes_ended ON sandboxes (ended_at) WHERE state = 'terminated';
-- The boot of the machine that began the turn. `summary` is what stays of a turn whose events were removed; `forgotten` is 1 when
-- none of them is left.
ALTER TABLE turns ADD COLUMN boot TEXT;
ALTER TABLE turns ADD COLUMN summary TEXT;
ALTER TABLE turns ADD COLUMN forgotten BIGINT NOT NULL DEFAULT 0;
CREATE INDEX turns_to_forget ON turns (ended_at) WHERE ended_at IS NOT NULL AND forgotten = 0;
CREATE INDEX hook_runs_by_time ON hook_runs (began_at);
CREATE INDEX conversations_by_use ON conversations (updated_at, id);
-- A lease that was given back has the time of that, below zero. Those from before have 0.
UPDATE leases SET expires_at = -CAST(unixepoch('subsec') * 1000000 AS INTEGER) WHERE expires_at = 0;
CREATE INDEX leases_by_end ON leases (expires_at);
-- The holds that a server renews.
CREATE INDEX idempotency_keys_held ON idempotency_keys (receipt) WHERE answer IS NULL;
