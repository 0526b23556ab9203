-- Delete rows that relay `outbox` has forwarded and that are older than a day: one lot, from cron.
WITH forwarded AS (
    SELECT outbox.xid, outbox.id
    FROM outbox, outbox_position AS position
    WHERE name = 'outbox'
      AND (outbox.xid, outbox.id) <= (position.xid, position.id)
      AND created_at < now() - interval '1 day'
    ORDER BY outbox.xid, outbox.id
    LIMIT 10000
)
DELETE FROM outbox USING forwarded
WHERE (outbox.xid, outbox.id) = (forwarded.xid, forwarded.id);
