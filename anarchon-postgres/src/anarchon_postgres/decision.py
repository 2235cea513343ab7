"""The decision of a claim, in PL/pgSQL: one text that runs as a function or, where none may be made, as a DO block.

Every statement inside a VOLATILE function sees what others committed before it began, so what follows the lock is
judged on what the holder before us wrote. The same in one SQL statement would read a snapshot older than the lock.
"""

from __future__ import annotations

from typing import Final

__all__ = ["ARGUMENTS", "ARGUMENT_TYPES", "BEFORE", "BLOCK", "DECISION_VERSION", "FUNCTION", "NOW", "WRONG_ISOLATION"]

DECISION_VERSION: Final = 1
"""Goes up whenever the text below changes: fleets of two versions run side by side, each with a function of its own."""

WRONG_ISOLATION: Final = "AN001"
"""SQLSTATE of a claim that was not started in READ COMMITTED."""

_TYPES: Final[tuple[tuple[str, str], ...]] = (
    ("p_job", "text"),
    ("p_slot_ms", "bigint"),
    ("p_space", "text"),
    ("p_token", "text"),
    ("p_instance", "text"),
    ("p_attempt_limit", "bigint"),
    ("p_lease_ms", "bigint"),
    ("p_max_late_ms", "bigint"),
    ("p_exclusive", "boolean"),
    ("p_keep_ms", "bigint"),
    ("p_history_size", "bigint"),
    ("p_history_ttl_ms", "bigint"),
    ("p_info", "text"),
    ("p_lock_wait", "text"),
    ("p_skip_locked", "boolean"),
)
ARGUMENTS: Final = tuple(name for name, _ in _TYPES)
ARGUMENT_TYPES: Final = tuple(kind for _, kind in _TYPES)

_VARIABLES: Final = """
    v_run record;
    v_job record;
    v_other record;
    v_made boolean := false;
    v_timed boolean := p_space <> 'n' AND left(p_space, 1) <> 'm';
    v_crashed boolean;
    v_floor_ms bigint;
    v_surplus bigint;
    o_outcome text;
    o_attempt integer := 0;
    o_now_ms bigint;
    o_wait_ms bigint;
    o_left_ms bigint;
    o_other_slot_ms bigint;
    o_other_space text;
    o_winner text;
    o_other_info text;
"""

NOW: Final = "floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
"""The store's clock at this very moment, in Unix milliseconds (C11)."""

BEFORE: Final = "floor(extract(epoch FROM transaction_timestamp()) * 1000)::bigint"
"""The store's clock before the snapshot of a statement on its own: a renewal that came between a snapshot and a later
clock must not make a held run look free (C17)."""

_BODY: Final = """
<<decide>>
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'a claim needs READ COMMITTED' USING ERRCODE = 'AN001';
    END IF;

    -- The read before the lock: a run that is final, or taken and alive, is refused without writing anything. Clock after
    -- read: what was alive then was alive when it was read. C17, C18.
    SELECT status, live, token, instance, lease_end_ms INTO v_run
        FROM {runs} WHERE job = p_job AND slot_ms = p_slot_ms AND space = p_space;
    IF FOUND AND NOT (v_run.status = 'running' AND v_run.token = p_token) THEN
        o_now_ms := {now};
        IF NOT v_run.live THEN
            o_outcome := 'done';
        ELSIF v_run.lease_end_ms > o_now_ms OR (v_run.lease_end_ms = o_now_ms AND v_run.status = 'running') THEN
            o_outcome := 'running';
        END IF;
        IF o_outcome IS NOT NULL
            AND (p_info = '' OR EXISTS (SELECT FROM {jobs} WHERE job = p_job AND info = p_info)) THEN
            o_winner := v_run.instance;
            IF v_run.live THEN
                o_left_ms := v_run.lease_end_ms - o_now_ms;
            END IF;
            EXIT decide;
        END IF;
        o_outcome := NULL;
    END IF;

    -- C3: the job's row makes the claims of one job take turns. A row that forget() removed meanwhile is made anew.
    PERFORM set_config('lock_timeout', p_lock_wait, true);
    FOR v_try IN 1..100 LOOP
        IF p_skip_locked THEN
            SELECT info, paused_ms, floor_ms INTO v_job FROM {jobs} WHERE job = p_job FOR UPDATE SKIP LOCKED;
        ELSE
            SELECT info, paused_ms, floor_ms INTO v_job FROM {jobs} WHERE job = p_job FOR UPDATE;
        END IF;
        EXIT WHEN FOUND;
        o_now_ms := {now};
        IF p_skip_locked AND EXISTS (SELECT FROM {jobs} WHERE job = p_job) THEN
            o_outcome := 'busy';
            EXIT decide;
        ELSIF v_timed AND p_slot_ms > o_now_ms THEN  -- C9: nothing is written, not even the job
            o_outcome := 'early';
            o_wait_ms := p_slot_ms - o_now_ms;
            EXIT decide;
        ELSIF v_timed AND o_now_ms - p_slot_ms > p_max_late_ms THEN
            o_outcome := 'late';
            EXIT decide;
        END IF;
        INSERT INTO {jobs} (job, first_ms, info) VALUES (p_job, o_now_ms, p_info)
            ON CONFLICT DO NOTHING RETURNING info, paused_ms, floor_ms INTO v_job;
        v_made := FOUND;
        EXIT WHEN v_made;
    END LOOP;
    IF v_job.info IS NULL THEN
        RAISE EXCEPTION 'the row of job % vanished again and again', p_job USING ERRCODE = 'lock_not_available';
    END IF;
    IF p_info <> '' AND v_job.info <> p_info THEN
        o_other_info := nullif(v_job.info, '');
        UPDATE {jobs} SET info = p_info WHERE job = p_job;
    END IF;

    -- The run's own lock keeps renewals and finishes of its holder apart from this decision.
    SELECT status, live, attempt, uncounted, token, instance, lease_end_ms INTO v_run
        FROM {runs} WHERE job = p_job AND slot_ms = p_slot_ms AND space = p_space FOR UPDATE;
    IF FOUND THEN
        o_now_ms := {now};  -- C11: after the locks, for now() is the transaction's start
        v_crashed := v_run.status = 'running';
        IF v_crashed AND v_run.token = p_token THEN  -- C4
            UPDATE {runs} SET lease_end_ms = o_now_ms + p_lease_ms
                WHERE job = p_job AND slot_ms = p_slot_ms AND space = p_space;
            o_outcome := 'won';
            o_attempt := v_run.attempt;
            EXIT decide;
        END IF;
        o_winner := v_run.instance;
        IF NOT v_run.live THEN  -- C18
            o_outcome := 'done';
        ELSIF v_run.lease_end_ms > o_now_ms OR (v_run.lease_end_ms = o_now_ms AND v_crashed) THEN  -- C11, C16
            o_outcome := 'running';
            o_left_ms := v_run.lease_end_ms - o_now_ms;
        ELSIF v_run.attempt - v_run.uncounted >= p_attempt_limit OR v_run.attempt >= 1000 THEN  -- C13
            UPDATE {runs} SET status = 'interrupted', live = false,
                    attempt_status = CASE WHEN v_crashed THEN 'interrupted' ELSE attempt_status END,
                    finished_ms = CASE WHEN v_crashed THEN o_now_ms ELSE finished_ms END
                WHERE job = p_job AND slot_ms = p_slot_ms AND space = p_space;
            o_outcome := 'done';
        END IF;
        EXIT decide WHEN o_outcome IS NOT NULL;
        INSERT INTO {attempts} (job, slot_ms, space, attempt, token, instance, status, claimed_ms, finished_ms, error)
            SELECT job, slot_ms, space, attempt, token, instance, CASE WHEN v_crashed THEN 'lost' ELSE attempt_status END,
                    claimed_ms, CASE WHEN v_crashed THEN o_now_ms ELSE finished_ms END, error
                FROM {runs} WHERE job = p_job AND slot_ms = p_slot_ms AND space = p_space;
        o_outcome := 'won';
        o_attempt := v_run.attempt + 1;  -- C8, C12
        UPDATE {runs} SET status = 'running', attempt = o_attempt, token = p_token, instance = p_instance,
                lease_end_ms = o_now_ms + p_lease_ms, attempt_status = 'running', claimed_ms = o_now_ms,
                finished_ms = NULL, error = NULL
            WHERE job = p_job AND slot_ms = p_slot_ms AND space = p_space;
    ELSE
        o_now_ms := {now};
        IF p_slot_ms <= v_job.floor_ms THEN  -- C6
            o_outcome := 'late';
        ELSIF v_timed AND p_slot_ms > o_now_ms THEN  -- C9
            o_outcome := 'early';
            o_wait_ms := p_slot_ms - o_now_ms;
        ELSIF v_timed AND o_now_ms - p_slot_ms > p_max_late_ms THEN
            o_outcome := 'late';
        ELSIF v_timed AND v_job.paused_ms IS NOT NULL THEN  -- C10
            o_outcome := 'paused';
        ELSIF p_exclusive AND p_space <> 'n' THEN  -- C10
            -- A lease that has ended may still be renewed (C14): hold those runs while this one is decided.
            PERFORM 1 FROM {runs}
                WHERE job = p_job AND live AND status = 'running' AND space <> 'n' AND lease_end_ms < o_now_ms
                ORDER BY slot_ms, space FOR UPDATE;
            SELECT slot_ms, space, instance, lease_end_ms INTO v_other FROM {runs}
                WHERE job = p_job AND live AND space <> 'n'
                    AND (lease_end_ms > o_now_ms OR (lease_end_ms = o_now_ms AND status = 'running'))
                ORDER BY id LIMIT 1;
            IF FOUND THEN
                o_outcome := 'overlap';
                o_left_ms := v_other.lease_end_ms - o_now_ms;
                o_other_slot_ms := v_other.slot_ms;
                o_other_space := v_other.space;
                o_winner := v_other.instance;
            END IF;
        END IF;
        IF o_outcome IS NOT NULL THEN
            IF v_made THEN
                DELETE FROM {jobs} WHERE job = p_job;
            END IF;
            EXIT decide;
        END IF;
        INSERT INTO {runs} (job, slot_ms, space, status, live, attempt, token, instance, lease_end_ms, attempt_status,
                claimed_ms)
            VALUES (p_job, p_slot_ms, p_space, 'running', true, 1, p_token, p_instance, o_now_ms + p_lease_ms, 'running',
                o_now_ms);
        o_outcome := 'won';
        o_attempt := 1;
    END IF;

    -- C6, C20: forget what is old and beyond the limits, oldest first, and raise the floor in the same step.
    PERFORM FROM {runs} WHERE job = p_job AND slot_ms < o_now_ms - p_keep_ms LIMIT 1;
    IF FOUND THEN
        SELECT count(*) - p_history_size INTO v_surplus FROM {runs} WHERE job = p_job;
        WITH old AS (
            SELECT slot_ms, space, live, row_number() OVER (ORDER BY slot_ms, id) AS place
                FROM {runs} WHERE job = p_job AND slot_ms < o_now_ms - p_keep_ms ORDER BY slot_ms, id LIMIT 100
        ), gone AS (
            DELETE FROM {runs} r USING old
                WHERE r.job = p_job AND r.slot_ms = old.slot_ms AND r.space = old.space AND NOT old.live
                    AND (old.place <= v_surplus OR o_now_ms - old.slot_ms > p_history_ttl_ms)
                RETURNING r.slot_ms, r.space
        ), records AS (
            DELETE FROM {attempts} a USING gone WHERE a.job = p_job AND a.slot_ms = gone.slot_ms AND a.space = gone.space
        )
        SELECT max(slot_ms) INTO v_floor_ms FROM gone;
        IF v_floor_ms IS NOT NULL THEN
            UPDATE {jobs} SET floor_ms = greatest(v_floor_ms, floor_ms) WHERE job = p_job;
        END IF;
    END IF;
END decide;
"""

_ANSWER: Final = """json_build_array(o_outcome, o_attempt, o_now_ms, o_wait_ms, o_left_ms, o_other_slot_ms, o_other_space,
        o_winner, o_other_info, p_job)::text"""

FUNCTION: Final = (
    "CREATE FUNCTION {claim}(" + ", ".join(f"{name} {kind}" for name, kind in _TYPES) + ") RETURNS text "
    "LANGUAGE plpgsql VOLATILE AS $anarchon$\nDECLARE" + _VARIABLES + "BEGIN" + _BODY + f"RETURN {_ANSWER};\nEND\n$anarchon$"
)
"""Makes the function; its answer is a JSON array."""

BLOCK: Final = (
    "DO $anarchon$\nDECLARE\n"
    + "".join(f"    {name} {kind} := nullif(current_setting('anarchon.{name}'), '\\N')::{kind};\n" for name, kind in _TYPES)
    + _VARIABLES.lstrip("\n")
    + "BEGIN"
    + _BODY
    + f"PERFORM set_config('anarchon.answer', {_ANSWER}, true);\nEND\n$anarchon$"
)
"""The same without a function: arguments and answer travel in settings local to the transaction, `\\N` being NULL."""
