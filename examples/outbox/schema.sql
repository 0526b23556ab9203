-- The outbox, for PostgreSQL 13 or later. The application inserts; relay.py reads and remembers.
BEGIN;

CREATE TABLE outbox (
    xid xid8 NOT NULL DEFAULT pg_current_xact_id(),  -- the transaction that inserts; leave it out
    id bigint GENERATED ALWAYS AS IDENTITY,
    queue text NOT NULL CHECK (queue ~ '^[a-zA-Z0-9._-]{1,249}$' AND queue NOT IN ('.', '..')),
    key text,
    payload bytea CHECK (octet_length(payload) <= 900000),  -- NULL deletes the key of a compacted queue
    headers jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(headers) = 'object'),
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (xid, id)
);

-- Where each relay is: all rows up to (xid, id) are in their queues.
CREATE TABLE outbox_position (
    name text PRIMARY KEY,
    xid xid8 NOT NULL,
    id bigint NOT NULL
);

-- How many events wait, and for how long the oldest has waited.
CREATE VIEW outbox_lag AS
SELECT name, count(outbox.id) AS events, coalesce(now() - min(created_at), '0') AS age
FROM outbox_position AS position
LEFT JOIN outbox ON (outbox.xid, outbox.id) > (position.xid, position.id)
GROUP BY name;

COMMIT;
