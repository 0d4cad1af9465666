-- The hot table holds what is not finished, history what is. docs/adr/0015-hot-table-and-history.md says why.
-- Every hot row is the protobuf message of proto/headrace/store/v1 in body, without its id; the other columns are what an index needs.

CREATE TABLE headrace.partitions (
    id       bigint PRIMARY KEY,
    epoch    bigint NOT NULL,
    floor    bigint NOT NULL DEFAULT 0,
    released bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
COMMENT ON TABLE headrace.partitions IS 'one row a partition, locked by each commit to it and changed only with its owner';

-- Counters are appended, not updated: a row that changes with each commit would leave a chain of dead versions
-- for every reader to walk while somebody pins xmin. The newest row is the truth and is met first.
CREATE TABLE headrace.counts (
    partition bigint   NOT NULL,
    n         bigint   NOT NULL,
    folded    bigint   NOT NULL, -- up to which n the deltas are in flows
    pending   bigint   NOT NULL, -- deltas since then
    seq       bigint   NOT NULL,
    ready     bigint   NOT NULL,
    due       bigint   NOT NULL,
    bytes     bigint   NOT NULL,
    tenants   text[],            -- the flows that this commit changed, and by how much
    functions text[],
    bands     smallint[],
    readies   bigint[],
    sizes     bigint[],
    PRIMARY KEY (partition, n)   -- read backwards: the newest is the first
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);

CREATE TABLE headrace.flows (
    partition bigint   NOT NULL,
    tenant    text     COLLATE "C" NOT NULL,
    function  text     COLLATE "C" NOT NULL,
    band      smallint NOT NULL,
    ready     bigint   NOT NULL,
    bytes     bigint   NOT NULL,
    PRIMARY KEY (partition, tenant, function, band)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
COMMENT ON TABLE headrace.flows IS 'ready rows by flow, but for what counts has not folded in yet';

CREATE TABLE headrace.functions (
    partition bigint NOT NULL,
    tenant    text   COLLATE "C" NOT NULL,
    name      text   COLLATE "C" NOT NULL,
    body      bytea  NOT NULL,
    PRIMARY KEY (partition, tenant, name)
);

CREATE TABLE headrace.names (
    tenant    text     COLLATE "C" NOT NULL,
    function  text     COLLATE "C" NOT NULL,
    partition bigint   NOT NULL,
    band      smallint NOT NULL,
    PRIMARY KEY (tenant, function, partition, band)
);
COMMENT ON TABLE headrace.names IS 'flows that there have ever been: which ranges of the indexes are a tenant''s';

-- A plain row is that of a task that is ready since it was submitted, of the default priority: most are. Its sort says when it was made, so
-- list and created are NULL and its body goes without three times; it is listed by its place.
CREATE TABLE headrace.hot (
    id      uuid    PRIMARY KEY, -- partition, sequence number, random bits: so it is ordered by partition and number. Get, Finish, Update: one probe
    num     bigint  NOT NULL, -- the sequence number: hot_place must not hold the id, or the planner may look for ids in it, from end to end
    place   bigint  NOT NULL, -- ready: a hash of partition and flow, below 0, odd for plain rows; else the partition
    sort    bigint  NOT NULL, -- ready: store.Key.Sort; else the due time in microseconds since 1970
    list    bigint,           -- a hash of tenant and function; its low 4 bits are the state
    created bigint,           -- microseconds since 1970
    mark    bigint,           -- the partition, of a row that has a record or a pending cancel
    body    bytea   NOT NULL, -- without the payload and the id
    payload bytea
) WITH (fillfactor = 95, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 50000, autovacuum_vacuum_cost_delay = 0,
        autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 100000);
ALTER TABLE headrace.hot ALTER payload SET STORAGE EXTERNAL;
CREATE INDEX hot_place ON headrace.hot (place, sort, num); -- Ready and Due: one range, behind a cursor
CREATE INDEX hot_list ON headrace.hot (list, created, id) WHERE list IS NOT NULL; -- List of live tasks that are not plain, read backwards
CREATE INDEX hot_mark ON headrace.hot (mark, num) WHERE mark IS NOT NULL; -- Recover: one range

CREATE TABLE headrace.hot_labels (
    label   bigint NOT NULL, -- a hash of tenant and label
    created bigint NOT NULL,
    id      uuid   NOT NULL,
    PRIMARY KEY (label, created, id) -- List by label, read backwards
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 50000, autovacuum_vacuum_cost_delay = 0);

-- History is append-only and dropped by the day. Days are made ahead by the server. A row is a pack: up to 64 tasks that one commit
-- ended, of one list, one block of 1024 numbers, and submitted within 131 ms. pack.go writes and reads them.
CREATE TABLE headrace.history (
    block   bigint   NOT NULL, -- partition and number / 1024, in the order of ids
    list    bigint   NOT NULL, -- a hash of tenant and function; its low 4 bits are the state
    created bigint   NOT NULL, -- of the newest, microseconds since 1970
    mask    bigint   NOT NULL, -- has bit n for a task whose number modulo 64 is n
    day     integer  NOT NULL, -- since 1970, of the commit that ended the tasks
    span    integer  NOT NULL, -- microseconds from the oldest to the newest
    class   smallint NOT NULL, -- of retention; 0 is the default
    sole    smallint NOT NULL, -- of a pack of one the task's number modulo 1024; else 1024
    keyed   boolean  NOT NULL, -- a task has a client's id in the directory
    body    bytea    NOT NULL,
    payload bytea              -- of a dead letter, which is alone then
) PARTITION BY RANGE (class, day);
ALTER TABLE headrace.history ALTER payload SET STORAGE EXTERNAL;
ALTER TABLE headrace.history ALTER body SET STORAGE EXTERNAL; -- packed already
CREATE INDEX history_block ON headrace.history (block, sole); -- Get: the task's own, and packs of its block, which are few
CREATE INDEX history_list ON headrace.history (list, created, block, sole); -- List, read backwards, merged over the days

CREATE TABLE headrace.history_labels (
    class   smallint NOT NULL,
    day     integer  NOT NULL,
    label   bigint   NOT NULL,
    created bigint   NOT NULL,
    id      uuid     NOT NULL
) PARTITION BY RANGE (class, day);
CREATE INDEX history_labels_label ON headrace.history_labels (label, created, id);

CREATE TABLE headrace.blocks (
    partition bigint   NOT NULL,
    block     bigint   NOT NULL, -- sequence number / 1024
    class     smallint NOT NULL,
    day       integer  NOT NULL,
    PRIMARY KEY (partition, block, class, day)
);
COMMENT ON TABLE headrace.blocks IS 'on which days tasks of a block of numbers ended: where Get looks';

CREATE TABLE headrace.directory (
    tenant text  COLLATE "C" NOT NULL,
    client bytea NOT NULL, -- the id that the client gave
    id     uuid  NOT NULL,
    PRIMARY KEY (tenant, client)
);

-- What submits made, in four slots of ten minutes: the one after the next is emptied at once.
CREATE TABLE headrace.requests (
    slot      smallint NOT NULL, -- ten minutes since 1970, modulo 4
    partition bigint   NOT NULL,
    tenant    text     COLLATE "C" NOT NULL,
    id        bytea    NOT NULL,
    at        bigint   NOT NULL, -- microseconds since 1970
    body      bytea    NOT NULL
) PARTITION BY LIST (slot);
ALTER TABLE headrace.requests ALTER body SET STORAGE EXTERNAL; -- ids are random: trying to compress those of a large submit costs 2 ms
CREATE INDEX requests_id ON headrace.requests (id, at);
CREATE TABLE headrace.requests_0 PARTITION OF headrace.requests FOR VALUES IN (0);
CREATE TABLE headrace.requests_1 PARTITION OF headrace.requests FOR VALUES IN (1);
CREATE TABLE headrace.requests_2 PARTITION OF headrace.requests FOR VALUES IN (2);
CREATE TABLE headrace.requests_3 PARTITION OF headrace.requests FOR VALUES IN (3);

-- Lets autovacuum rest or work on the tables whose rows come and go; false: somebody is at them, so that it has to be asked again.
CREATE FUNCTION headrace.rest_v1(a_rest boolean) RETURNS boolean
LANGUAGE plpgsql SET lock_timeout = '100ms' AS $$
DECLARE
    v_table regclass;
BEGIN
    FOR v_table IN SELECT oid FROM pg_catalog.pg_class
        WHERE oid IN ('headrace.hot'::regclass, 'headrace.hot_labels'::regclass)
          AND a_rest <> coalesce('autovacuum_enabled=false' = ANY (reloptions), false) ORDER BY oid LOOP
        IF a_rest THEN
            EXECUTE format('ALTER TABLE %s SET (autovacuum_enabled = false)', v_table);
        ELSE
            EXECUTE format('ALTER TABLE %s RESET (autovacuum_enabled)', v_table);
        END IF;
    END LOOP;
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END $$;

-- Raises a partition's epoch by compare-and-set; NULL if it is not the given one.
CREATE FUNCTION headrace.acquire_v1(a_partition bigint, a_from bigint) RETURNS bigint
LANGUAGE plpgsql SET lock_timeout = '500ms' AS $$
DECLARE
    v_epoch bigint;
BEGIN
    IF a_from = 0 THEN
        INSERT INTO headrace.partitions (id, epoch) VALUES (a_partition, 0) ON CONFLICT DO NOTHING;
        IF FOUND THEN
            INSERT INTO headrace.counts (partition, n, folded, pending, seq, ready, due, bytes)
            VALUES (a_partition, 0, 0, 0, 0, 0, 0, 0);
        END IF;
    END IF;
    UPDATE headrace.partitions SET epoch = epoch + 1 WHERE id = a_partition AND epoch = a_from
    RETURNING epoch INTO v_epoch;
    RETURN v_epoch;
END $$;

-- Adds the deltas of the counts behind a_from, up to a_to, to flows, and drops those rows but the last.
CREATE FUNCTION headrace.fold_v1(a_partition bigint, a_from bigint, a_to bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    WITH delta AS (
        SELECT d.tenant, d.function, d.band, sum(d.ready) AS ready, sum(d.bytes) AS bytes
        FROM headrace.counts c, unnest(c.tenants, c.functions, c.bands, c.readies, c.sizes) AS d (tenant, function, band, ready, bytes)
        WHERE c.partition = a_partition AND c.n > a_from AND c.n <= a_to
        GROUP BY 1, 2, 3
        HAVING sum(d.ready) <> 0 OR sum(d.bytes) <> 0
        ORDER BY 1, 2, 3
    )
    INSERT INTO headrace.flows AS f (partition, tenant, function, band, ready, bytes)
    SELECT a_partition, tenant, function, band, ready, bytes FROM delta
    ON CONFLICT (partition, tenant, function, band)
    DO UPDATE SET ready = f.ready + excluded.ready, bytes = f.bytes + excluded.bytes;
    DELETE FROM headrace.flows WHERE partition = a_partition AND ready = 0;
    DELETE FROM headrace.counts WHERE partition = a_partition AND n >= a_from AND n < a_to;
END $$;

-- One commit: everything that an owner writes, in one statement, so that nothing is held while data travels.
-- No plan in it may hang on statistics: while somebody pins xmin, a vacuum finds a large table without rows, and any scan of an index
-- costs nothing then. So each row is looked up in a LATERAL that the planner can't turn round (LIMIT, OFFSET), by the whole key of one index.
-- Arrays that belong together have one letter. If any part (p_…) is fenced, nothing is done and ok says which.
CREATE FUNCTION headrace.commit_v1(
    p_id bigint[], p_epoch bigint[], p_floor bigint[], p_release boolean[], p_seq bigint[], p_ready bigint[], p_due bigint[], p_bytes bigint[],
    f_part integer[], f_tenant text[], f_function text[], f_band smallint[], f_ready bigint[], f_bytes bigint[],
    n_tenant text[], n_function text[], n_partition bigint[], n_band smallint[],
    b_partition bigint[], b_block bigint[],
    k_tenant text[], k_client bytea[], k_id uuid[], k_part integer[], k_flow integer[], k_ready bigint[], k_due bigint[], k_bytes bigint[],
    i_id uuid[], i_num bigint[], i_place bigint[], i_sort bigint[], i_list bigint[], i_created bigint[], i_mark bigint[], i_body bytea[], i_payload bytea[],
    u_id uuid[], u_place bigint[], u_sort bigint[], u_list bigint[], u_created bigint[], u_mark bigint[], u_keep boolean[], u_payload bytea[],
    u_body bytea[],
    d_id uuid[],
    h_class smallint, h_day integer,
    h_id uuid[], h_block bigint[], h_list bigint[], h_created bigint[], h_mask bigint[], h_span integer[], h_sole smallint[], h_keyed boolean[], h_move boolean[],
    h_body bytea[], h_payload bytea[],
    l_label bigint[], l_created bigint[], l_id uuid[],
    x_label bigint[], x_created bigint[], x_id uuid[],
    m_label bigint[], m_created bigint[], m_id uuid[],
    r_slot smallint[], r_partition bigint[], r_tenant text[], r_id bytea[], r_at bigint[], r_body bytea[],
    g_partition bigint[], g_tenant text[], g_name text[], g_body bytea[],
    OUT ok boolean[], OUT refused integer[], OUT holders uuid[])
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET jit = off SET lock_timeout = '2s' AS $$
DECLARE
    v_refused uuid[]; -- tasks whose client id is taken
    v_busy    integer[] := '{}'; -- keys that somebody is taking at the moment, by place
    v_until   timestamptz;
    v_rows    bigint;
    v_last    headrace.counts;
    v_next    headrace.counts;
    v_fold    boolean;
    i         integer;
    j         integer;
BEGIN
    PERFORM 1 FROM headrace.partitions WHERE id = ANY (p_id) ORDER BY id FOR NO KEY UPDATE;
    ok := ARRAY(
        SELECT coalesce(p.epoch = t.epoch AND t.epoch > 0 AND p.server = pg_postmaster_start_time(), false)
        FROM unnest(p_id, p_epoch) WITH ORDINALITY AS t (id, epoch, n) LEFT JOIN headrace.partitions p ON p.id = t.id
        ORDER BY t.n);
    IF false = ANY (ok) THEN
        RETURN;
    END IF;

    IF cardinality(k_id) > 0 THEN
        -- The caller has sorted them, so that no two commits wait for each other in a circle; of equal ones the first wins.
        BEGIN
            PERFORM set_config('lock_timeout', '100ms', true);
            INSERT INTO headrace.directory (tenant, client, id)
            SELECT t.tenant, t.client, t.id FROM unnest(k_tenant, k_client, k_id) AS t (tenant, client, id)
            ON CONFLICT DO NOTHING;
            GET DIAGNOSTICS v_rows = ROW_COUNT;
        EXCEPTION WHEN lock_not_available THEN
            -- A commit that has not ended is taking one of them. The keys that wait leave the batch, also those
            -- whose turn does not come within half a second.
            v_rows := 0;
            v_until := clock_timestamp() + interval '500 milliseconds';
            FOR i IN 1 .. cardinality(k_id) LOOP
                IF clock_timestamp() > v_until THEN
                    v_busy := v_busy || i;
                    CONTINUE;
                END IF;
                BEGIN
                    PERFORM set_config('lock_timeout', '10ms', true);
                    INSERT INTO headrace.directory (tenant, client, id) VALUES (k_tenant[i], k_client[i], k_id[i]) ON CONFLICT DO NOTHING;
                EXCEPTION WHEN lock_not_available THEN
                    v_busy := v_busy || i;
                END;
            END LOOP;
        END;
        PERFORM set_config('lock_timeout', '2s', true);
        IF v_rows < cardinality(k_id) THEN
            SELECT array_agg(t.n::integer ORDER BY t.n), array_agg(t.id ORDER BY t.n), array_agg(d.id ORDER BY t.n)
            INTO refused, v_refused, holders
            FROM unnest(k_tenant, k_client, k_id) WITH ORDINALITY AS t (tenant, client, id, n)
            CROSS JOIN LATERAL (SELECT d.id FROM headrace.directory d WHERE d.tenant = t.tenant AND d.client = t.client LIMIT 1) d
            WHERE d.id <> t.id AND t.n <> ALL (v_busy);
            refused := coalesce(refused, '{}') || v_busy;
            FOREACH i IN ARRAY v_busy LOOP
                v_refused := v_refused || k_id[i];
                holders := holders || '00000000-0000-0000-0000-000000000000'::uuid; -- nobody, yet
            END LOOP;
            FOREACH i IN ARRAY refused LOOP
                p_ready[k_part[i]] := p_ready[k_part[i]] - k_ready[i];
                p_due[k_part[i]] := p_due[k_part[i]] - k_due[i];
                p_bytes[k_part[i]] := p_bytes[k_part[i]] - k_bytes[i];
                IF k_ready[i] <> 0 THEN
                    f_ready[k_flow[i]] := f_ready[k_flow[i]] - k_ready[i];
                    f_bytes[k_flow[i]] := f_bytes[k_flow[i]] - k_bytes[i];
                END IF;
            END LOOP;
        END IF;
    END IF;

    IF cardinality(n_tenant) > 0 THEN
        INSERT INTO headrace.names SELECT * FROM unnest(n_tenant, n_function, n_partition, n_band) ORDER BY 1, 2, 3, 4 ON CONFLICT DO NOTHING;
    END IF;
    IF cardinality(i_id) > 0 THEN
        -- In the select list, unlike in FROM, arrays are unpacked row by row and not first copied, each into a table of its own.
        INSERT INTO headrace.hot (id, num, place, sort, list, created, mark, body, payload)
        SELECT * FROM (SELECT unnest(i_id) AS id, unnest(i_num), unnest(i_place), unnest(i_sort), unnest(i_list), unnest(i_created), unnest(i_mark),
                       unnest(i_body), unnest(i_payload)) t
        WHERE v_refused IS NULL OR t.id <> ALL (v_refused);
    END IF;
    IF cardinality(u_id) > 0 THEN
        UPDATE headrace.hot h SET place = t.place, sort = t.sort, list = t.list, created = t.created, mark = t.mark, body = t.body,
            payload = CASE WHEN t.keep THEN h.payload ELSE t.payload END
        FROM (SELECT t.*, o.at
              FROM unnest(u_id, u_place, u_sort, u_list, u_created, u_mark, u_keep, u_payload, u_body) AS t (id, place, sort, list, created, mark, keep, payload, body)
              CROSS JOIN LATERAL (SELECT o.ctid AS at FROM headrace.hot o WHERE o.id = t.id LIMIT 1) o OFFSET 0) t
        WHERE h.ctid = t.at;
        GET DIAGNOSTICS v_rows = ROW_COUNT;
        IF v_rows <> cardinality(u_id) THEN
            RAISE EXCEPTION 'of % tasks to change % are there', cardinality(u_id), v_rows USING ERRCODE = 'data_corrupted';
        END IF;
    END IF;
    IF cardinality(h_block) > 0 THEN
        -- h_id is that of a pack of one whose payload moves along, or whose client id may be taken; else NULL.
        INSERT INTO headrace.history (block, list, created, mask, day, span, class, sole, keyed, body, payload)
        SELECT t.block, t.list, t.created, t.mask, h_day, t.span, h_class, t.sole, t.keyed, t.body,
               CASE WHEN t.move THEN (SELECT h.payload FROM headrace.hot h WHERE h.id = t.id) ELSE t.payload END
        FROM unnest(h_id, h_block, h_list, h_created, h_mask, h_span, h_sole, h_keyed, h_move, h_body, h_payload)
            AS t (id, block, list, created, mask, span, sole, keyed, move, body, payload)
        WHERE v_refused IS NULL OR t.id IS NULL OR t.id <> ALL (v_refused);
    END IF;
    IF cardinality(d_id) > 0 THEN
        DELETE FROM headrace.hot WHERE ctid = ANY (ARRAY(
            SELECT o.ctid FROM unnest(d_id) AS t (id) CROSS JOIN LATERAL (SELECT o.ctid FROM headrace.hot o WHERE o.id = t.id LIMIT 1) o));
        GET DIAGNOSTICS v_rows = ROW_COUNT;
        IF v_rows <> cardinality(d_id) THEN
            RAISE EXCEPTION 'of % tasks to finish % are there', cardinality(d_id), v_rows USING ERRCODE = 'data_corrupted';
        END IF;
    END IF;
    IF cardinality(b_block) > 0 THEN
        INSERT INTO headrace.blocks SELECT t.partition, t.block, h_class, h_day FROM unnest(b_partition, b_block) AS t (partition, block)
        ON CONFLICT DO NOTHING;
    END IF;
    IF cardinality(l_id) > 0 THEN
        INSERT INTO headrace.hot_labels SELECT * FROM unnest(l_label, l_created, l_id) AS t (label, created, id)
        WHERE v_refused IS NULL OR t.id <> ALL (v_refused);
    END IF;
    IF cardinality(x_id) > 0 THEN
        DELETE FROM headrace.hot_labels WHERE ctid = ANY (ARRAY(
            SELECT o.ctid FROM unnest(x_label, x_created, x_id) AS t (label, created, id)
            CROSS JOIN LATERAL (SELECT o.ctid FROM headrace.hot_labels o WHERE o.label = t.label AND o.created = t.created AND o.id = t.id LIMIT 1) o));
    END IF;
    IF cardinality(m_id) > 0 THEN
        INSERT INTO headrace.history_labels SELECT h_class, h_day, t.* FROM unnest(m_label, m_created, m_id) AS t (label, created, id)
        WHERE v_refused IS NULL OR t.id <> ALL (v_refused);
    END IF;
    IF cardinality(r_id) > 0 THEN
        INSERT INTO headrace.requests SELECT * FROM unnest(r_slot, r_partition, r_tenant, r_id, r_at, r_body);
    END IF;
    IF cardinality(g_name) > 0 THEN
        INSERT INTO headrace.functions SELECT * FROM unnest(g_partition, g_tenant, g_name, g_body)
        ON CONFLICT (partition, tenant, name) DO UPDATE SET body = excluded.body;
    END IF;

    FOR i IN 1 .. cardinality(p_id) LOOP
        IF p_floor[i] > 0 OR p_release[i] THEN
            UPDATE headrace.partitions SET floor = greatest(floor, p_floor[i]), released = CASE WHEN p_release[i] THEN p_epoch[i] ELSE released END
            WHERE id = p_id[i];
        END IF;
        SELECT * INTO STRICT v_last FROM headrace.counts WHERE partition = p_id[i] ORDER BY n DESC LIMIT 1;
        v_next := v_last;
        v_next.tenants := NULL;
        IF cardinality(f_part) > 0 THEN
            SELECT array_agg(t.tenant), array_agg(t.function), array_agg(t.band), array_agg(t.ready), array_agg(t.bytes)
            INTO v_next.tenants, v_next.functions, v_next.bands, v_next.readies, v_next.sizes
            FROM unnest(f_part, f_tenant, f_function, f_band, f_ready, f_bytes) AS t (part, tenant, function, band, ready, bytes)
            WHERE t.part = i AND (t.ready <> 0 OR t.bytes <> 0);
        END IF;
        CONTINUE WHEN v_next.tenants IS NULL AND p_seq[i] <= v_last.seq AND p_ready[i] = 0 AND p_due[i] = 0 AND p_bytes[i] = 0;
        IF v_next.tenants IS NULL THEN
            v_next.functions := NULL; v_next.bands := NULL; v_next.readies := NULL; v_next.sizes := NULL;
        END IF;
        v_next.n := v_last.n + 1;
        v_next.seq := greatest(v_last.seq, p_seq[i]);
        v_next.ready := v_last.ready + p_ready[i];
        v_next.due := v_last.due + p_due[i];
        v_next.bytes := v_last.bytes + p_bytes[i];
        v_next.pending := v_last.pending + coalesce(cardinality(v_next.tenants), 0);
        v_fold := v_next.n - v_last.folded >= 256 OR v_next.pending > 20000;
        IF v_fold THEN
            v_next.folded := v_next.n;
            v_next.pending := 0;
        END IF;
        INSERT INTO headrace.counts VALUES (v_next.*);
        IF v_fold THEN
            PERFORM headrace.fold_v1(p_id[i], v_last.folded, v_next.n);
        END IF;
    END LOOP;
END $$;
