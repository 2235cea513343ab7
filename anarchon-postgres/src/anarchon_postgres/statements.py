"""Every other statement of this backend, with the clauses it implements. Names and clock are put in by `Names.fill`.

Sets travel as one JSON parameter. A write that may wait for a lock says for how long inside itself, since behind a pooler
there is no session to say it in; and it takes the row's lock before it reads the clock.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Final, Self

from anarchon_postgres.decision import ARGUMENT_TYPES, ARGUMENTS
from anarchon_postgres.schema import Names

__all__ = ["Statements", "named_with_colons"]

_PIECES: Final = {
    "patience": "patience AS MATERIALIZED (SELECT set_config('lock_timeout', %(wait)s, true))",
    "held": "job = %(job)s AND slot_ms = %(slot_ms)s AND space = %(space)s AND token = %(token)s AND status = 'running'",
    "one": "r.job = %(job)s AND r.slot_ms = %(slot_ms)s AND r.space = %(space)s",
    "view": "r.status, r.attempt, r.instance, r.lease_end_ms - {before}",
    "marks": ", ".join(["%s"] * len(ARGUMENTS)),
    "arguments": ", ".join(ARGUMENTS),
    "columns": ", ".join(f"{name} {kind}" for name, kind in zip(ARGUMENTS, ARGUMENT_TYPES, strict=True)),
    "settings": ", ".join(f"set_config('anarchon.{name}', %s, true)" for name in ARGUMENTS),
}


@dataclass(frozen=True, slots=True)
class Statements:
    """The statements for one set of tables."""

    # C1-C13: the decision itself, see `decision`.
    claim: str = "SELECT {claim}({marks})"
    # C3: one transaction for all; the rows of the jobs are taken in the order of the parameter.
    claim_many: str = "SELECT {claim}({arguments}) FROM json_to_recordset(%s::json) AS wanted({columns})"
    # The arguments of the decision as a block, local to the transaction.
    put_arguments: str = "SELECT {settings}"
    get_answer: str = "SELECT current_setting('anarchon.answer')"

    # C14, C15: the token that holds a running run, and no other. Rows are locked in one order, so that no two callers
    # wait for each other.
    renew: str = """
        WITH {patience}, wanted AS MATERIALIZED (
            SELECT * FROM json_to_recordset(%(items)s::json)
                AS w(job text, slot_ms bigint, space text, token text, lease_ms bigint)
        ), locked AS MATERIALIZED (
            SELECT r.job, r.slot_ms, r.space, r.token, w.lease_ms
            FROM wanted w JOIN {runs} r ON r.job = w.job AND r.slot_ms = w.slot_ms AND r.space = w.space, patience
            WHERE r.token = w.token AND r.status = 'running'
            ORDER BY r.job, r.slot_ms, r.space FOR UPDATE OF r)
        UPDATE {runs} r SET lease_end_ms = {now} + l.lease_ms FROM locked l
        WHERE r.job = l.job AND r.slot_ms = l.slot_ms AND r.space = l.space AND r.token = l.token AND r.status = 'running'
        RETURNING r.job, r.slot_ms, r.space, r.token"""
    # C15, C16: `status` is no longer running, so the token that stays in the record holds nothing.
    release: str = """
        WITH {patience}, locked AS MATERIALIZED (
            SELECT r.job, r.slot_ms, r.space FROM {runs} r, patience
            WHERE {one} AND r.token = %(token)s AND r.status = 'running' FOR UPDATE OF r)
        UPDATE {runs} r SET status = 'handed_over', lease_end_ms = {now} + %(delay_ms)s,
            uncounted = uncounted + %(uncounted)s, attempt_status = %(attempt_status)s, finished_ms = {now}, error = %(error)s
        FROM locked l
        WHERE r.job = l.job AND r.slot_ms = l.slot_ms AND r.space = l.space AND r.token = %(token)s AND r.status = 'running'"""
    # C15, C18: one row, or this token does not hold the run. The plain form is for transactions that are not ours.
    finish: str = """
        WITH {patience}
        UPDATE {runs} r SET status = %(status)s, live = %(live)s, ended_by_token = true, attempt_status = %(status)s,
            finished_ms = {now}, error = %(error)s
        FROM patience WHERE {one} AND r.token = %(token)s AND r.status = 'running'"""
    # The same for many, in one order; rows that somebody has locked are left out.
    finish_many: str = """
        WITH wanted AS MATERIALIZED (
            SELECT * FROM json_to_recordset(%s::json) AS w(
                place integer, job text, slot_ms bigint, space text, token text, status text, live boolean, error text)
        ), locked AS MATERIALIZED (
            SELECT r.job, r.slot_ms, r.space, r.token, w.place, w.status, w.live, w.error
            FROM wanted w JOIN {runs} r ON r.job = w.job AND r.slot_ms = w.slot_ms AND r.space = w.space
            WHERE r.token = w.token AND r.status = 'running'
            ORDER BY r.job, r.slot_ms, r.space FOR UPDATE OF r SKIP LOCKED)
        UPDATE {runs} r SET status = l.status, live = l.live, ended_by_token = true, attempt_status = l.status,
            finished_ms = {now}, error = l.error FROM locked l
        WHERE r.job = l.job AND r.slot_ms = l.slot_ms AND r.space = l.space AND r.token = l.token AND r.status = 'running'
        RETURNING l.place"""
    finish_plain: str = """
        UPDATE {runs} SET status = %(status)s, live = %(live)s, ended_by_token = true, attempt_status = %(status)s,
            finished_ms = {now}, error = %(error)s
        WHERE {held}"""
    # C18: repeated by the token that finished it.
    was_finished: str = "SELECT r.ended_by_token AND r.token = %(token)s FROM {runs} r WHERE {one}"
    # A transaction whose commit was not answered holds the row until it is decided: wait for that, then read.
    settle: str = """
        WITH {patience}
        SELECT r.ended_by_token AND r.token = %(token)s FROM {runs} r, patience WHERE {one} FOR UPDATE OF r"""
    holds: str = "SELECT EXISTS (SELECT FROM {runs} WHERE {held})"

    # C17: one plain SELECT, nothing written.
    check: str = """
        SELECT w.place, {view}
        FROM json_to_recordset(%s::json) AS w(place integer, job text, slot_ms bigint, space text)
            JOIN {runs} r ON r.job = w.job AND r.slot_ms = w.slot_ms AND r.space = w.space"""
    # K12: runs, not notes.
    unfinished: str = """
        SELECT r.job, r.slot_ms, r.space, {view} FROM {runs} r
        WHERE r.job = ANY (%s::text[]) AND r.live AND r.space <> 'n' ORDER BY r.slot_ms, r.id"""
    # C19: newest slot first, then newest attempt.
    history: str = """
        SELECT * FROM (
            SELECT job, slot_ms, space, attempt, token, instance, attempt_status AS status, claimed_ms, finished_ms, error
            FROM {runs} WHERE job = %(job)s AND slot_ms >= %(since_ms)s
            UNION ALL
            SELECT job, slot_ms, space, attempt, token, instance, status, claimed_ms, finished_ms, error
            FROM {attempts} WHERE job = %(job)s AND slot_ms >= %(since_ms)s) AS records
        ORDER BY slot_ms DESC, attempt DESC, claimed_ms DESC LIMIT %(limit)s"""
    jobs: str = "SELECT job, first_ms, paused_ms, resumed_ms, floor_ms, info FROM {jobs} ORDER BY job"
    now_ms: str = "SELECT {now}"

    # C10: repeating changes nothing.
    pause: str = """
        WITH {patience}
        INSERT INTO {jobs} AS j (job, first_ms, paused_ms) SELECT %(job)s, {now}, {now} FROM patience
        ON CONFLICT (job) DO UPDATE SET paused_ms = coalesce(j.paused_ms, {now})"""
    resume: str = """
        WITH {patience}
        INSERT INTO {jobs} AS j (job, first_ms) SELECT %(job)s, {now} FROM patience
        ON CONFLICT (job) DO UPDATE SET paused_ms = NULL,
            resumed_ms = CASE WHEN j.paused_ms IS NULL THEN j.resumed_ms ELSE {now} END"""

    # The job's row first, as a claim takes it: a claim that waits for it then finds no job and makes a new one.
    lock_job: str = "SELECT 1 FROM {jobs} WHERE job = %s FOR UPDATE"
    forget_runs: str = "DELETE FROM {runs} WHERE job = %s"
    forget_attempts: str = "DELETE FROM {attempts} WHERE job = %s"
    forget_job: str = "DELETE FROM {jobs} WHERE job = %s"

    @classmethod
    def of(cls, names: Names) -> Self:
        """Return the statements for these tables."""
        return cls(**{item.name: names.fill(_assemble(str(item.default))) for item in fields(cls)})


def _assemble(statement: str) -> str:
    """Return a statement with the pieces that several share put in."""
    for name, piece in _PIECES.items():
        statement = statement.replace(f"{{{name}}}", piece)
    return statement


def named_with_colons(statement: str) -> str:
    """Return a statement with `%(name)s` written as `:name`, which is what SQLAlchemy's `text` reads."""
    return re.sub(r"%\((\w+)\)s", r":\1", statement)
