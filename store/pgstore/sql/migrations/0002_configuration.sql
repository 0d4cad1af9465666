-- What the database remembers of the cluster's configuration, so that a registry that was restored or lost is
-- noticed, and can be rebuilt. docs/adr/0026-truth-and-restores.md says how.

CREATE TABLE headrace.configuration (
    one    boolean PRIMARY KEY DEFAULT true CHECK (one),
    seen   bigint NOT NULL, -- the highest version that this database was told of
    copied bigint NOT NULL  -- the version that the copies are of
);
COMMENT ON TABLE headrace.configuration IS 'one row';
INSERT INTO headrace.configuration (seen, copied) VALUES (0, 0);

CREATE TABLE headrace.configuration_copies (
    key     text   COLLATE "C" PRIMARY KEY,
    value   bytea  NOT NULL,
    version bigint NOT NULL
);
COMMENT ON TABLE headrace.configuration_copies IS 'the registry''s keys, in the first database';

-- Applies changes to the copies of version a_from; false: they are of another one.
CREATE FUNCTION headrace.copy_configuration_v1(a_from bigint, a_to bigint, a_keys text[], a_values bytea[], a_versions bigint[], a_gone boolean[])
RETURNS boolean LANGUAGE plpgsql SET lock_timeout = '500ms' AS $$
BEGIN
    UPDATE headrace.configuration SET copied = a_to, seen = greatest(seen, a_to) WHERE one AND copied = a_from AND a_from <= a_to;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    DELETE FROM headrace.configuration_copies c USING unnest(a_keys, a_gone) AS d (key, gone) WHERE d.gone AND c.key = d.key;
    INSERT INTO headrace.configuration_copies AS c (key, value, version)
    SELECT d.key, d.value, d.version FROM unnest(a_keys, a_values, a_versions, a_gone) AS d (key, value, version, gone) WHERE NOT d.gone
    ON CONFLICT (key) DO UPDATE SET value = excluded.value, version = excluded.version;
    RETURN true;
END $$;

-- A server that was started anew may be one that was restored from a backup, or a standby that lacks the last commits:
-- owners from before read what is there, under a higher epoch, before they write.
ALTER TABLE headrace.partitions ADD COLUMN server timestamptz; -- the start of the server that the epoch was raised at

-- acquire_v1 that raises the epoch above a_above, too.
CREATE FUNCTION headrace.acquire_v2(a_partition bigint, a_from bigint, a_above bigint) RETURNS bigint
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
    UPDATE headrace.partitions SET epoch = greatest(epoch, a_above) + 1, server = pg_postmaster_start_time()
    WHERE id = a_partition AND epoch = a_from
    RETURNING epoch INTO v_epoch;
    RETURN v_epoch;
END $$;
