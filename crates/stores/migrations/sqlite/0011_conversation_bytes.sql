-- What conversations store: messages, and events of turns. A turn counts once it has ended. The sum of an account is the row
-- `conversations` of `stored_bytes`, which is no place of a bucket.
ALTER TABLE turns ADD COLUMN prompt_bytes BIGINT NOT NULL DEFAULT 0;
ALTER TABLE turns ADD COLUMN event_bytes BIGINT NOT NULL DEFAULT 0;
ALTER TABLE conversations ADD COLUMN stored_bytes BIGINT NOT NULL DEFAULT 0;
UPDATE turns SET event_bytes = CAST(COALESCE((SELECT SUM(OCTET_LENGTH(e.data)) FROM turn_events e WHERE e.turn_id = turns.id), 0) AS BIGINT);
UPDATE turns SET prompt_bytes = CAST(COALESCE((SELECT SUM(OCTET_LENGTH(m.content)) FROM messages m WHERE m.account_id = turns.account_id
    AND m.conversation_id = turns.conversation_id AND m.id = turns.prompt_id), 0) AS BIGINT) WHERE state = 'running';
UPDATE conversations SET stored_bytes = CAST(
    COALESCE((SELECT SUM(t.event_bytes) FROM turns t WHERE t.conversation_id = conversations.id AND t.state <> 'running'), 0)
    + COALESCE((SELECT SUM(OCTET_LENGTH(m.content)) FROM messages m WHERE m.account_id = conversations.account_id
        AND m.conversation_id = conversations.id AND NOT EXISTS (SELECT 1 FROM turns t WHERE t.conversation_id = m.conversation_id
        AND t.state = 'running' AND m.id IN (t.prompt_id, t.answer_id))), 0) AS BIGINT);
INSERT INTO stored_bytes (account_id, place, bytes, listings)
    SELECT account_id, 'conversations', CAST(SUM(stored_bytes) AS BIGINT), 0 FROM conversations GROUP BY account_id;
