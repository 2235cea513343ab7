"""Every statement of this backend, with the clauses it implements. `{runs}` and its kin are quoted, validated names."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final, Self

__all__ = ["RESERVED_ENDINGS", "SCHEMA", "SCHEMA_VERSION", "Sql"]

RESERVED_ENDINGS: Final = ("_jobs", "_history", "_schema", "_live")
"""What is put behind the table option; a table option that ends so could meet another one's tables (C7)."""

SCHEMA: Final[tuple[tuple[str, ...], ...]] = (
    (
        # C8: a run is (job, slot, space). `live` is 0 once the status is final (C18), so that indexes can leave it out.
        """CREATE TABLE {runs} (
            id INTEGER PRIMARY KEY, job TEXT NOT NULL, slot_ms INTEGER NOT NULL, space TEXT NOT NULL,
            status TEXT NOT NULL, live INTEGER NOT NULL, attempt INTEGER NOT NULL, uncounted INTEGER NOT NULL,
            token TEXT, finisher TEXT, instance TEXT NOT NULL, lease_end_ms INTEGER NOT NULL,
            UNIQUE (job, slot_ms, space))""",
        # C10, K12: overlap and unfinished look at live runs only, however long the history.
        "CREATE INDEX {live} ON {runs} (job, lease_end_ms, slot_ms) WHERE live = 1",
        # C6, C10: pause, floor, and how many runs are kept, so that pruning need not count.
        """CREATE TABLE {jobs} (
            job TEXT PRIMARY KEY, first_ms INTEGER NOT NULL, info TEXT NOT NULL, paused_ms INTEGER, resumed_ms INTEGER,
            floor_ms INTEGER, run_count INTEGER NOT NULL) WITHOUT ROWID""",
        # C19: one row an attempt, in the order in which history is read.
        """CREATE TABLE {history} (
            job TEXT NOT NULL, slot_ms INTEGER NOT NULL, space TEXT NOT NULL, attempt INTEGER NOT NULL,
            token TEXT NOT NULL, instance TEXT NOT NULL, status TEXT NOT NULL, claimed_ms INTEGER NOT NULL,
            finished_ms INTEGER, error TEXT, PRIMARY KEY (job, slot_ms, space, attempt)) WITHOUT ROWID""",
    ),
)
"""One tuple a schema version: what takes the file from the version before to this one. Only ever append."""

SCHEMA_VERSION: Final = len(SCHEMA)


@dataclass(frozen=True, slots=True)
class Sql:
    """The statements for one set of tables."""

    # The version table says which steps of SCHEMA this file has seen.
    has_schema: str = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = {schema_text}"
    make_schema: str = "CREATE TABLE {schema} (version INTEGER NOT NULL)"
    get_version: str = "SELECT max(version) FROM {schema}"
    put_version: str = "INSERT INTO {schema} (version) VALUES (?)"

    # C8: equality of the whole key.
    find_run: str = """SELECT id, status, attempt, uncounted, token, finisher, instance, lease_end_ms
        FROM {runs} WHERE job = ? AND slot_ms = ? AND space = ?"""
    find_job: str = "SELECT first_ms, info, paused_ms, resumed_ms, floor_ms, run_count FROM {jobs} WHERE job = ?"

    # C10, C11, C16: a lease that ends now is alive, a release delay that ends now has passed; notes never block.
    find_overlap: str = """SELECT slot_ms, space, instance, lease_end_ms FROM {runs}
        WHERE job = :job AND live = 1 AND space <> 'n' AND lease_end_ms >= :now
        AND (lease_end_ms > :now OR status = 'running') ORDER BY id LIMIT 1"""

    # C2, C8: attempt 1.
    add_run: str = """INSERT INTO {runs} (job, slot_ms, space, status, live, attempt, uncounted, token, instance, lease_end_ms)
        VALUES (?, ?, ?, 'running', 1, 1, 0, ?, ?, ?)"""
    count_run: str = """INSERT INTO {jobs} (job, first_ms, info, run_count) VALUES (?, ?, ?, 1)
        ON CONFLICT (job) DO UPDATE SET run_count = run_count + 1"""
    # C12: the next attempt.
    take_over: str = """UPDATE {runs} SET status = 'running', live = 1, attempt = ?, token = ?, instance = ?, lease_end_ms = ?
        WHERE id = ?"""
    # C4: own claim, sent again.
    extend: str = "UPDATE {runs} SET lease_end_ms = ? WHERE id = ?"
    # C13: no attempt left.
    give_up: str = "UPDATE {runs} SET status = 'interrupted', live = 0, token = NULL WHERE id = ?"
    put_info: str = "UPDATE {jobs} SET info = ? WHERE job = ?"

    # C19: written in the step of the claim, closed in the step that ends the attempt.
    add_record: str = """INSERT INTO {history} (job, slot_ms, space, attempt, token, instance, status, claimed_ms)
        VALUES (?, ?, ?, ?, ?, ?, 'running', ?)"""
    close_record: str = """UPDATE {history} SET status = ?, finished_ms = ?, error = ?
        WHERE job = ? AND slot_ms = ? AND space = ? AND attempt = ?"""

    # C6, C20: oldest first; the caller stops at the first run that must stay.
    find_old: str = """SELECT id, slot_ms, space, live FROM {runs} WHERE job = ? AND slot_ms < ? ORDER BY slot_ms, id"""
    drop_run: str = "DELETE FROM {runs} WHERE id = ?"
    drop_records: str = "DELETE FROM {history} WHERE job = ? AND slot_ms = ? AND space = ?"
    raise_floor: str = "UPDATE {jobs} SET floor_ms = max(?, coalesce(floor_ms, ?)), run_count = run_count - ? WHERE job = ?"

    # C14, C15: the token that holds a running run, and no other.
    renew: str = """UPDATE {runs} SET lease_end_ms = ?
        WHERE job = ? AND slot_ms = ? AND space = ? AND token = ? AND status = 'running'"""
    # C15, C16: the token comes off.
    release: str = """UPDATE {runs} SET status = 'handed_over', token = NULL, lease_end_ms = ?, uncounted = uncounted + ?
        WHERE id = ?"""
    # C15, C18.
    finish: str = """UPDATE {runs} SET status = ?, live = ?, token = NULL, finisher = ?
        WHERE id = ? AND token = ? AND status = 'running'"""

    # C17: reads only. `{wanted}` becomes a list of row values.
    check: str = """WITH wanted (place, job, slot_ms, space) AS (VALUES {wanted})
        SELECT w.place, r.status, r.attempt, r.instance, r.lease_end_ms
        FROM wanted AS w JOIN {runs} AS r ON r.job = w.job AND r.slot_ms = w.slot_ms AND r.space = w.space"""
    # K12: runs, not notes.
    unfinished: str = """WITH wanted (job) AS (VALUES {wanted})
        SELECT r.job, r.slot_ms, r.space, r.status, r.attempt, r.instance, r.lease_end_ms
        FROM wanted AS w CROSS JOIN {runs} AS r ON r.job = w.job AND r.live = 1 AND r.space <> 'n'"""
    # C19: newest slot first, then attempt.
    history_of: str = """SELECT job, slot_ms, space, attempt, token, instance, status, claimed_ms, finished_ms, error
        FROM {history} WHERE job = ? AND slot_ms >= ?
        ORDER BY slot_ms DESC, attempt DESC, claimed_ms DESC LIMIT ?"""
    all_jobs: str = "SELECT job, first_ms, paused_ms, resumed_ms, floor_ms, info FROM {jobs} ORDER BY job"

    # C10.
    add_job: str = "INSERT INTO {jobs} (job, first_ms, info, run_count) VALUES (?, ?, '', 0) ON CONFLICT (job) DO NOTHING"
    pause: str = "UPDATE {jobs} SET paused_ms = ? WHERE job = ? AND paused_ms IS NULL"
    resume: str = "UPDATE {jobs} SET paused_ms = NULL, resumed_ms = ? WHERE job = ? AND paused_ms IS NOT NULL"

    forget_runs: str = "DELETE FROM {runs} WHERE job = ?"
    forget_history: str = "DELETE FROM {history} WHERE job = ?"
    forget_job: str = "DELETE FROM {jobs} WHERE job = ?"

    @classmethod
    def of(cls, table: str) -> Self:
        """Return the statements for a table option that `Options` has accepted."""
        return cls(**{item.name: name_tables(str(item.default), table) for item in fields(cls)})


def name_tables(statement: str, table: str) -> str:
    """Return a statement with the names of the tables put in; a list of values is left for later."""
    names = {ending[1:]: f'"{table}{ending}"' for ending in RESERVED_ENDINGS}
    return statement.format(**names, runs=f'"{table}"', schema_text=f"'{table}_schema'", wanted="{wanted}")
