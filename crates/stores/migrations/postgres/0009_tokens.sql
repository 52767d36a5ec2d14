-- What accounts are charged for models, by day of UTC: limits of tokens count these, and they outlive conversations.
CREATE TABLE token_charges (
    account_id BYTEA NOT NULL,
    -- Days since 1970-01-01.
    day BIGINT NOT NULL,
    -- A run of a turn that has not ended. Sixteen zeros and 0: the sum of all that has.
    turn_id BYTEA NOT NULL,
    run BIGINT NOT NULL,
    tokens BIGINT NOT NULL,
    PRIMARY KEY (account_id, day, turn_id, run)
);
INSERT INTO token_charges (account_id, day, turn_id, run, tokens)
    SELECT account_id, created_at / 86400000000, '\x00000000000000000000000000000000'::bytea, 0, SUM(input_tokens + output_tokens + cache_tokens)
    FROM (SELECT account_id, created_at, input_tokens, output_tokens, cache_tokens FROM turn_usage
        UNION ALL SELECT account_id, created_at, input_tokens, output_tokens, cache_tokens FROM hook_usage) AS used
    GROUP BY account_id, created_at / 86400000000;
-- Nothing asks any more what was used since a time.
DROP INDEX turn_usage_of_account;
DROP INDEX hook_usage_of_account;
