-- Each query is one block; the comment names the index that it must use. See queries_test.go.

-- name: Acquire
-- index: partitions_pkey
SELECT headrace.acquire_v2($1::bigint, $2::bigint, $3::bigint);

-- name: EndHolders
-- Backends of our own role that hold the lock on a partition's row.
-- index: partitions_pkey
SELECT count(pg_terminate_backend(a.pid)) FROM pg_stat_activity a
WHERE a.backend_xid = (SELECT p.xmax FROM headrace.partitions p WHERE p.id = $1::bigint)
  AND a.usename = current_user AND a.datname = current_database() AND a.pid <> pg_backend_pid();

-- name: Epoch
-- index: partitions_pkey
SELECT coalesce((SELECT epoch FROM headrace.partitions WHERE id = $1::bigint), 0), pg_is_in_recovery();

-- name: Partitions
-- One probe of counts_pkey for each partition.
SELECT p.id, p.epoch, p.floor, p.released, c.seq, c.ready, c.due, c.bytes, pg_is_in_recovery()
FROM headrace.partitions p
CROSS JOIN LATERAL (SELECT * FROM headrace.counts c WHERE c.partition = p.id ORDER BY c.n DESC LIMIT 1) c
WHERE p.id = $1::bigint OR $1::bigint IS NULL
ORDER BY p.id;

-- name: Functions
-- index: functions_pkey
SELECT body FROM headrace.functions WHERE partition = $1::bigint ORDER BY tenant, name;

-- name: Marked
-- index: hot_mark
SELECT id, body, CASE WHEN list IS NULL THEN sort END FROM headrace.hot WHERE mark = $1::bigint ORDER BY mark, num;

-- name: Flows
-- What is folded, and the deltas of at most 256 commits. index: flows_pkey, counts_pkey
SELECT tenant, function, band, sum(ready)::bigint, sum(bytes)::bigint
FROM (
    SELECT tenant, function, band, ready, bytes FROM headrace.flows WHERE partition = $1::bigint
    UNION ALL
    SELECT d.* FROM headrace.counts c, unnest(c.tenants, c.functions, c.bands, c.readies, c.sizes) AS d (tenant, function, band, ready, bytes)
    WHERE c.partition = $1::bigint
      AND c.n > (SELECT l.folded FROM headrace.counts l WHERE l.partition = $1::bigint ORDER BY l.n DESC LIMIT 1)
) f
GROUP BY 1, 2, 3
HAVING sum(ready) > 0;

-- name: Page
-- Ready and Due: rows of a place, or of two that are merged, from behind a cursor. Each row that the limits leave comes with
-- its payload if that is inline; one more comes without, to show that there is more. index: hot_place
SELECT id, body, plain, CASE WHEN n = 1 OR total <= $6::bigint THEN CASE WHEN len <= $7::bigint THEN payload END END, len
FROM (
    SELECT sort, num, id, body, plain, payload, len, row_number() OVER w AS n,
           sum(CASE WHEN len <= $7::bigint THEN len ELSE 0 END) OVER w AS total
    FROM (
        SELECT sort, num, id, body, CASE WHEN list IS NULL THEN sort END AS plain, payload, coalesce(octet_length(payload), 0) AS len
        FROM (
            (SELECT sort, num, id, body, list, payload FROM headrace.hot WHERE place = $1::bigint AND (sort, num) > ($2::bigint, $3::bigint) AND sort < $4::bigint
             ORDER BY sort, num LIMIT $5::bigint)
            UNION ALL
            (SELECT sort, num, id, body, list, payload FROM headrace.hot WHERE place = $8::bigint AND (sort, num) > ($2::bigint, $3::bigint) AND sort < $4::bigint
             ORDER BY sort, num LIMIT $5::bigint)
        ) h
        ORDER BY sort, num
        LIMIT $5::bigint
    ) h
    WINDOW w AS (ORDER BY sort, num ROWS UNBOUNDED PRECEDING)
) h
WHERE n <= 2 OR total - CASE WHEN len <= $7::bigint THEN len ELSE 0 END <= $6::bigint
ORDER BY sort, num;

-- name: GetHot
-- index: hot_pkey
SELECT id, body, CASE WHEN list IS NULL THEN sort END, payload FROM headrace.hot WHERE id = $1::uuid;

-- name: Blocks
-- index: blocks_pkey
SELECT class, day FROM headrace.blocks WHERE partition = $1::bigint AND block = $2::bigint ORDER BY day DESC;

-- name: GetHistory
-- index: history_block of one day; the others are pruned. Packs of the block that may hold the task.
SELECT body, payload FROM headrace.history WHERE class = $1::smallint AND day = $2::integer AND block = $3::bigint
  AND sole = ANY (ARRAY[1024, $4::smallint]) AND mask & $5::bigint <> 0;

-- name: ByClientID
-- index: directory_pkey
SELECT id FROM headrace.directory WHERE tenant = $1 AND client = $2::bytea;

-- name: Request
-- index: requests_0_id_at_idx
SELECT body FROM headrace.requests
WHERE id = $1::bytea AND at >= $2::bigint AND at <= $3::bigint AND partition = $4::bigint AND tenant = $5
ORDER BY at DESC LIMIT 1;

-- name: Names
-- index: names_pkey
SELECT function, partition, band FROM headrace.names WHERE tenant = $1 AND (function = $2 OR $2 = '');

-- name: ListHot
-- Ranges of lists, and ranges of places of plain rows, which were made $6 microseconds before their sort. index: hot_list, hot_place
SELECT created, id, body, plain
FROM (
    SELECT t.*
    FROM unnest($1::bigint[]) AS g (list)
    CROSS JOIN LATERAL (
        SELECT created, id, body, NULL::bigint AS plain FROM headrace.hot h
        WHERE h.list = g.list AND (h.created, h.id) < ($2::bigint, $3::uuid)
        ORDER BY h.created DESC, h.id DESC LIMIT $4::bigint) t
    UNION ALL
    SELECT t.*
    FROM unnest($5::bigint[], $8::bigint[]) AS g (place, num)
    CROSS JOIN LATERAL (
        SELECT sort - $6::bigint AS created, id, body, sort AS plain FROM headrace.hot h
        WHERE h.place = g.place AND (h.sort, h.num) < ($7::bigint, g.num)
        ORDER BY h.sort DESC, h.num DESC LIMIT $4::bigint) t
) t
ORDER BY created DESC, id DESC LIMIT $4::bigint;

-- name: ListHistory
-- Packs of some lists from a place on, those left out whose oldest task is newer than the cursor, until they hold enough
-- tasks. index: history_list of each day
SELECT created, block, sole, mask, list, body
FROM (
    SELECT created, block, sole, mask, list, body, n, sum(n) OVER (ORDER BY created DESC, block DESC, sole DESC ROWS UNBOUNDED PRECEDING) AS total
    FROM (
        SELECT t.*, bit_count(t.mask::bit(64)) AS n
        FROM unnest($1::bigint[]) AS g (list)
        CROSS JOIN LATERAL (
            SELECT created, block, sole, mask, list, body FROM headrace.history h
            WHERE h.list = g.list AND (h.created, h.block, h.sole) <= ($2::bigint, $3::bigint, $7::smallint) AND h.created - h.span <= $4::bigint
            ORDER BY h.created DESC, h.block DESC, h.sole DESC LIMIT $5::bigint) t
        ORDER BY t.created DESC, t.block DESC, t.sole DESC LIMIT $5::bigint
    ) t
) t
WHERE total - n < $6::bigint
ORDER BY created DESC, block DESC, sole DESC;

-- name: LabelHot
-- index: hot_labels_pkey
SELECT l.created, l.id, h.body, CASE WHEN h.list IS NULL THEN h.sort END
FROM (SELECT created, id FROM headrace.hot_labels
      WHERE label = $1::bigint AND (created, id) < ($2::bigint, $3::uuid)
      ORDER BY created DESC, id DESC LIMIT $4::bigint) l
CROSS JOIN LATERAL (SELECT body, list, sort FROM headrace.hot h WHERE h.id = l.id LIMIT 1) h
ORDER BY l.created DESC, l.id DESC;

-- name: LabelHistory
-- index: history_labels_label of each day
SELECT class, day, created, id FROM headrace.history_labels
WHERE label = $1::bigint AND (created, id) < ($2::bigint, $3::uuid)
ORDER BY created DESC, id DESC LIMIT $4::bigint;

-- name: Packs
-- index: history_block of each day
SELECT h.body
FROM unnest($1::smallint[], $2::integer[], $3::bigint[], $4::smallint[], $5::bigint[]) AS t (class, day, block, sole, mask)
CROSS JOIN LATERAL (SELECT body FROM headrace.history h
                    WHERE h.class = t.class AND h.day = t.day AND h.block = t.block AND h.sole = ANY (ARRAY[1024, t.sole]) AND h.mask & t.mask <> 0) h;

-- name: Days
-- The days of history that are there, by name.
SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = 'headrace.history'::regclass ORDER BY 1;

-- name: Settings
SELECT name, setting FROM pg_settings
WHERE name IN ('server_version', 'fsync', 'synchronous_commit', 'full_page_writes', 'wal_level', 'wal_compression', 'shared_buffers',
               'max_wal_size', 'synchronous_standby_names');

-- name: Disk
SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint, pg_database_size(current_database());

-- name: BareHot
-- index: hot_pkey
SELECT id, body, CASE WHEN list IS NULL THEN sort END FROM headrace.hot WHERE id = ANY ($1::uuid[]);

-- name: BareHistory
-- index: blocks_pkey, and history_block of the days that it names
SELECT h.body
FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::smallint[], $5::bigint[]) AS t (partition, block, pack, sole, mask)
CROSS JOIN LATERAL (SELECT class, day FROM headrace.blocks b WHERE b.partition = t.partition AND b.block = t.block OFFSET 0) b
CROSS JOIN LATERAL (SELECT body FROM headrace.history h
                    WHERE h.class = b.class AND h.day = b.day AND h.block = t.pack AND h.sole = ANY (ARRAY[1024, t.sole]) AND h.mask & t.mask <> 0) h;

-- name: GiveBack
-- index: directory_pkey
DELETE FROM headrace.directory d
USING (SELECT o.at, t.id FROM unnest($1::text[], $2::bytea[], $3::uuid[]) AS t (tenant, client, id)
       CROSS JOIN LATERAL (SELECT o.ctid AS at FROM headrace.directory o WHERE o.tenant = t.tenant AND o.client = t.client AND o.id = t.id LIMIT 1) o
       OFFSET 0) t
WHERE d.ctid = t.at AND d.id = t.id;

-- name: TableExists
SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
               WHERE n.nspname = 'headrace' AND c.relname = $1);

-- name: Plan
-- Goes before each read, in its transaction: what a read costs must not depend on when statistics were last taken. A bitmap
-- or a sort reads all of a range before the first row comes out.
SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true), set_config('enable_sort', 'off', true),
       set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true), set_config('jit', 'off', true);

-- name: OldestSnapshot
-- Whose transaction keeps dead rows from being removed: sessions and prepared transactions of this database. Roles without
-- pg_monitor see no state and time of others. A vacuum does not count, nor do standbys.
SELECT pid, who, application, state, since, (extract(epoch FROM clock_timestamp() - since) * 1e6)::bigint, current_database()::text
FROM (
    SELECT pid, coalesce(usename, '')::text AS who, coalesce(application_name, '') AS application, coalesce(state, '') AS state,
           coalesce(xact_start, backend_start, clock_timestamp()) AS since, age(backend_xmin) AS n
    FROM pg_stat_activity
    WHERE backend_xmin IS NOT NULL AND datname = current_database() AND pid <> pg_backend_pid() AND query NOT ILIKE 'autovacuum: VACUUM%'
    UNION ALL
    SELECT 0, owner::text, '', 'prepared transaction ' || gid, prepared, age(transaction)
    FROM pg_prepared_xacts WHERE database = current_database()
) t
ORDER BY n DESC, since LIMIT 1;

-- name: Rest
-- Whether autovacuum rests on what comes and goes.
SELECT headrace.rest_v1($1::boolean);

-- name: Configuration
-- index: configuration_pkey
SELECT seen, copied, pg_is_in_recovery() FROM headrace.configuration WHERE one;

-- name: Copies
-- All rows: the copies are read when a node becomes the leader, or the registry is rebuilt. With the version that they are of.
SELECT c.key, c.value, c.version, v.seen, v.copied, pg_is_in_recovery()
FROM headrace.configuration v LEFT JOIN headrace.configuration_copies c ON true
WHERE v.one ORDER BY c.key COLLATE "C";

-- name: SawConfiguration
-- index: configuration_pkey
UPDATE headrace.configuration SET seen = $1::bigint WHERE one AND seen < $1::bigint;

-- name: CopyConfiguration
-- index: configuration_pkey, configuration_copies_pkey
SELECT headrace.copy_configuration_v1($1::bigint, $2::bigint, $3::text[], $4::bytea[], $5::bigint[], $6::boolean[]);
