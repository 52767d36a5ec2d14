-- Since when the keys of an account are refused, and since when the account is being deleted with all that is its own.
ALTER TABLE accounts ADD COLUMN suspended_at BIGINT;
ALTER TABLE accounts ADD COLUMN deleting_at BIGINT;
