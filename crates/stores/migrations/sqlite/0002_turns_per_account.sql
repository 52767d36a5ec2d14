-- One turn at a time per sandbox of an account: a stranger who names the sandbox stands in nobody's way.
DROP INDEX turns_one_per_sandbox;
CREATE UNIQUE INDEX turns_one_per_sandbox ON turns (account_id, sandbox_id) WHERE state = 'running';
