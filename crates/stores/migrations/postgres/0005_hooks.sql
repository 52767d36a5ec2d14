-- What hooks used, beside the agents of turns: part of the ledger.
CREATE TABLE hook_usage (
    conversation_id BYTEA NOT NULL,
    -- The turn and the hook, or the run where there is no turn.
    name TEXT NOT NULL,
    account_id BYTEA NOT NULL,
    input_tokens BIGINT NOT NULL,
    output_tokens BIGINT NOT NULL,
    cache_tokens BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (conversation_id, name)
);
CREATE INDEX hook_usage_of_account ON hook_usage (account_id, created_at);
-- Which hook it was, and in which turn.
ALTER TABLE hook_runs ADD COLUMN name TEXT;
ALTER TABLE hook_runs ADD COLUMN turn_id BYTEA;
