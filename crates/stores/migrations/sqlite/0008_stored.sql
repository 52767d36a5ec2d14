-- Bytes in buckets. A place is a prefix with the versions of one workspace.
CREATE TABLE stored_bytes (
    account_id BLOB NOT NULL,
    place TEXT NOT NULL,
    bytes BIGINT NOT NULL,
    -- How often the bytes were set by a listing; 0: what was there before the first row is not counted.
    listings BIGINT NOT NULL,
    PRIMARY KEY (account_id, place)
);
