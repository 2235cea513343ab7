"""The tables, and how a later version changes them under a running fleet. `{runs}` and its kin are quoted names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from anarchon_postgres.decision import BEFORE, DECISION_VERSION, NOW

__all__ = [
    "ENDINGS",
    "MAKE_VERSIONS",
    "OLDEST_FLEET",
    "PUT_VERSION",
    "SCHEMA",
    "SCHEMA_VERSION",
    "Names",
]

ENDINGS: Final = ("_jobs", "_attempts", "_schema", "_live", "_pkey", "_id_seq")
"""What we or the server put behind the table option; a table option that ends so could meet another one's tables (C7)."""

SCHEMA: Final[tuple[tuple[str, ...], ...]] = (
    (
        # C8: a run is (job, slot, space). C19: it carries the record of its last attempt itself, so that the usual run of
        # one attempt is one row. `token` is that of the last attempt and holds the run only while `status` is running;
        # `ended_by_token` says that this token finished it (C18). `id` keeps the order of first claims.
        """CREATE TABLE {runs} (
            job text COLLATE "C" NOT NULL, slot_ms bigint NOT NULL, space text COLLATE "C" NOT NULL,
            status text NOT NULL, live boolean NOT NULL, ended_by_token boolean NOT NULL DEFAULT false,
            attempt integer NOT NULL, uncounted integer NOT NULL DEFAULT 0,
            token text NOT NULL, instance text NOT NULL, lease_end_ms bigint NOT NULL,
            attempt_status text NOT NULL, claimed_ms bigint NOT NULL, finished_ms bigint, error text,
            id bigint GENERATED ALWAYS AS IDENTITY,
            PRIMARY KEY (job, slot_ms, space)) WITH (fillfactor = 80)""",
        # C10, K12: overlap and unfinished look at live runs only, however long the history. Renewals touch no index.
        "CREATE INDEX {live} ON {runs} (job) WHERE live",
        # C10, C6: the row that claims of one job take turns on, with the job's pause and floor.
        """CREATE TABLE {jobs} (
            job text COLLATE "C" PRIMARY KEY, first_ms bigint NOT NULL, info text NOT NULL DEFAULT '',
            paused_ms bigint, resumed_ms bigint, floor_ms bigint) WITH (fillfactor = 50)""",
        # C19: the attempts before the last one.
        """CREATE TABLE {attempts} (
            job text COLLATE "C" NOT NULL, slot_ms bigint NOT NULL, space text COLLATE "C" NOT NULL, attempt integer NOT NULL,
            token text NOT NULL, instance text NOT NULL, status text NOT NULL,
            claimed_ms bigint NOT NULL, finished_ms bigint, error text,
            PRIMARY KEY (job, slot_ms, space, attempt))""",
    ),
)
"""One tuple a schema version: what takes the tables from the version before to this one. Only ever append.

A step must leave every statement of the versions down to its `OLDEST_FLEET` working, because they go on running beside
it: add columns with defaults, tables and indexes; drop nothing that they name.
"""

SCHEMA_VERSION: Final = len(SCHEMA)

OLDEST_FLEET: Final = 1
"""The oldest schema version whose code works on the tables of this one; written beside the version for older code."""

MAKE_VERSIONS: Final = "CREATE TABLE IF NOT EXISTS {versions} (version integer PRIMARY KEY, oldest_fleet integer NOT NULL)"
PUT_VERSION: Final = "INSERT INTO {versions} (version, oldest_fleet) VALUES (%s, %s)"


@dataclass(frozen=True, slots=True)
class Names:
    """The tables of one backend, in a schema that is known by name: nobody's search_path chooses them (C7)."""

    schema: str
    table: str

    def fill(self, statement: str) -> str:
        """Return a statement with the quoted names put in."""
        return statement.format(
            runs=self._quoted(""),
            jobs=self._quoted("_jobs"),
            attempts=self._quoted("_attempts"),
            versions=self._quoted("_schema"),
            live=f'"{self.table}_live"',
            claim=f'"{self.schema}"."{self.function_name}"',
            now=NOW,
            before=BEFORE,
        )

    @property
    def function_name(self) -> str:
        """The bare name of the function that decides claims."""
        return f"{self.table}_claim_v{DECISION_VERSION}"

    def _quoted(self, ending: str) -> str:
        return f'"{self.schema}"."{self.table}{ending}"'
