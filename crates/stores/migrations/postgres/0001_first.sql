-- Times are microseconds since 1970. Ids are the 16 bytes of a UUID.

CREATE TABLE accounts (
    id BYTEA PRIMARY KEY,
    name TEXT NOT NULL,
    settings TEXT NOT NULL,
    created_at BIGINT NOT NULL
);
CREATE INDEX accounts_by_age ON accounts (created_at, id);

CREATE TABLE api_keys (
    id BYTEA PRIMARY KEY,
    account_id BYTEA NOT NULL REFERENCES accounts (id),
    name TEXT NOT NULL,
    prefix TEXT NOT NULL,
    hash BYTEA NOT NULL UNIQUE,
    scopes TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT,
    revoked_at BIGINT,
    last_used_at BIGINT
);
CREATE INDEX api_keys_of_account ON api_keys (account_id, created_at, id);

CREATE TABLE conversations (
    id BYTEA PRIMARY KEY,
    account_id BYTEA NOT NULL,
    organization_id TEXT,
    agent_id TEXT,
    sandbox_id BYTEA,
    template TEXT,
    messages_exchanged BIGINT NOT NULL DEFAULT 0,
    input_tokens BIGINT NOT NULL DEFAULT 0,
    output_tokens BIGINT NOT NULL DEFAULT 0,
    cache_tokens BIGINT NOT NULL DEFAULT 0,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL
);
CREATE INDEX conversations_by_update ON conversations (account_id, updated_at, id);
CREATE INDEX conversations_by_age ON conversations (account_id, created_at, id);
CREATE INDEX conversations_of_organization_by_update ON conversations (account_id, organization_id, updated_at, id);
CREATE INDEX conversations_of_organization_by_age ON conversations (account_id, organization_id, created_at, id);
CREATE INDEX conversations_of_agent_by_update ON conversations (account_id, agent_id, updated_at, id);
CREATE INDEX conversations_of_agent_by_age ON conversations (account_id, agent_id, created_at, id);
CREATE INDEX conversations_of_sandbox_by_update ON conversations (account_id, sandbox_id, updated_at, id);
CREATE INDEX conversations_of_sandbox_by_age ON conversations (account_id, sandbox_id, created_at, id);

CREATE TABLE turns (
    id BYTEA PRIMARY KEY,
    account_id BYTEA NOT NULL,
    conversation_id BYTEA NOT NULL,
    sandbox_id BYTEA,
    template TEXT,
    number BIGINT NOT NULL,
    state TEXT NOT NULL,
    error TEXT,
    prompt_id BYTEA NOT NULL,
    answer_id BYTEA NOT NULL,
    output_offset BIGINT NOT NULL DEFAULT 0,
    events BIGINT NOT NULL DEFAULT 0,
    created_at BIGINT NOT NULL,
    ended_at BIGINT
);
CREATE UNIQUE INDEX turns_of_conversation ON turns (conversation_id, number);
-- One turn at a time, per conversation and per sandbox.
CREATE UNIQUE INDEX turns_one_per_conversation ON turns (conversation_id) WHERE state = 'running';
CREATE UNIQUE INDEX turns_one_per_sandbox ON turns (sandbox_id) WHERE state = 'running';
CREATE INDEX turns_running ON turns (created_at, id) WHERE state = 'running';

-- The ledger. Totals of a conversation are the sums of its rows.
CREATE TABLE turn_usage (
    turn_id BYTEA PRIMARY KEY,
    account_id BYTEA NOT NULL,
    conversation_id BYTEA NOT NULL,
    input_tokens BIGINT NOT NULL,
    output_tokens BIGINT NOT NULL,
    cache_tokens BIGINT NOT NULL,
    answered BIGINT NOT NULL,
    created_at BIGINT NOT NULL
);
CREATE INDEX turn_usage_of_conversation ON turn_usage (conversation_id);

CREATE TABLE turn_events (
    turn_id BYTEA NOT NULL,
    number BIGINT NOT NULL,
    data BYTEA NOT NULL,
    PRIMARY KEY (turn_id, number)
);

CREATE TABLE messages (
    account_id BYTEA NOT NULL,
    conversation_id BYTEA NOT NULL,
    created_at BIGINT NOT NULL,
    id BYTEA NOT NULL,
    revision BIGINT NOT NULL,
    content TEXT NOT NULL,
    PRIMARY KEY (account_id, conversation_id, created_at, id)
);
CREATE INDEX messages_by_id ON messages (account_id, conversation_id, id);

CREATE TABLE sandboxes (
    id BYTEA PRIMARY KEY,
    account_id BYTEA NOT NULL,
    name TEXT,
    provider TEXT NOT NULL,
    node TEXT,
    template TEXT,
    spec TEXT NOT NULL,
    state TEXT NOT NULL,
    reason TEXT,
    removing TEXT,
    unsynced BIGINT NOT NULL,
    metadata TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    started_at BIGINT,
    last_used_at BIGINT NOT NULL,
    version BIGINT NOT NULL
);
CREATE UNIQUE INDEX sandboxes_by_name ON sandboxes (account_id, name) WHERE name IS NOT NULL;
CREATE INDEX sandboxes_by_age ON sandboxes (account_id, created_at, id);
CREATE INDEX sandboxes_by_state ON sandboxes (account_id, state, created_at, id);
CREATE INDEX sandboxes_of_node ON sandboxes (node, created_at, id);

CREATE TABLE sessions (
    account_id BYTEA NOT NULL,
    scope TEXT NOT NULL,
    scope_id TEXT NOT NULL,
    sandbox_id BYTEA NOT NULL,
    image TEXT,
    created_at BIGINT NOT NULL,
    last_used_at BIGINT NOT NULL,
    PRIMARY KEY (account_id, scope, scope_id)
);
CREATE INDEX sessions_by_use ON sessions (last_used_at);
CREATE INDEX sessions_by_age ON sessions (created_at);

CREATE TABLE hook_runs (
    id BYTEA PRIMARY KEY,
    account_id BYTEA NOT NULL,
    kind TEXT NOT NULL,
    template TEXT,
    conversation_id BYTEA,
    sandbox_id BYTEA,
    began_at BIGINT NOT NULL,
    ended_at BIGINT,
    error TEXT
);
CREATE INDEX hook_runs_by_age ON hook_runs (account_id, began_at, id);
CREATE INDEX hook_runs_of_sandbox ON hook_runs (account_id, sandbox_id, began_at, id);

-- Whoever takes an entry makes it due later, and writes a receipt.
CREATE TABLE outbox (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    conversation_id BYTEA,
    task TEXT NOT NULL,
    due BIGINT NOT NULL,
    receipt BIGINT NOT NULL DEFAULT 0,
    attempts BIGINT NOT NULL DEFAULT 0,
    last_error TEXT
);
CREATE INDEX outbox_by_due ON outbox (due, id);
CREATE INDEX outbox_of_conversation ON outbox (conversation_id) WHERE conversation_id IS NOT NULL;

CREATE TABLE idempotency_keys (
    account_id BYTEA NOT NULL,
    name TEXT NOT NULL,
    request BYTEA NOT NULL,
    receipt BIGINT NOT NULL,
    busy_until BIGINT NOT NULL,
    keep_until BIGINT NOT NULL,
    answer BYTEA,
    PRIMARY KEY (account_id, name)
);
CREATE INDEX idempotency_keys_by_age ON idempotency_keys (keep_until);

CREATE TABLE leases (
    name TEXT PRIMARY KEY,
    holder TEXT NOT NULL,
    epoch BIGINT NOT NULL,
    expires_at BIGINT NOT NULL
);
