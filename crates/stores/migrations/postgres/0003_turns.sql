-- Why a workspace is not in its bucket, and what an account used since a time.
ALTER TABLE sandboxes ADD COLUMN unsynced_why TEXT;
CREATE INDEX turn_usage_of_account ON turn_usage (account_id, created_at);
