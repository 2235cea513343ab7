"""MariaDB as a lease backend of anarchon: every step is one transaction that locks the row of its job and asks its clock."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import astuple, replace
from typing import Any, Self

import aiomysql  # type: ignore[import-untyped]  # no stubs
from anarchon.backend import LeaseBackend
from anarchon.errors import BackendError, BackendUnavailable, StoreSetupError
from anarchon.hookspecs import hookimpl
from anarchon.types import ATTEMPTS_MAX, Claim, ClaimRequest, JobView, Outcome, RunKey, RunRecord, RunResult, RunStatus, RunView
from anarchon.url import BackendUrl

CONTRACT_VERSION = 1
Row = dict[str, Any]
AWAY = {1040, 1053, 1203, 1205, 1213, 1226, 1927, *range(2000, 2100)}  # full, stopping, locked, deadlock, killed, wire broken
SETUP = {1044, 1045, 1046, 1049, 1142, 1193, 1227, 1273}  # no right to do it, or a server that lacks a variable or collation
NOW = "CAST(UNIX_TIMESTAMP(SYSDATE(3)) * 1000 AS SIGNED)"  # $now, $at, $run, $kind in a statement stand for these four
AT = "job=%s AND slot_ms=%s AND space=%s"
RUN = "job VARCHAR(200), slot_ms BIGINT, space VARCHAR(100), attempt INT, token VARCHAR(100), instance TEXT NOT NULL"
KIND = "ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin"
SESSION = """SET SESSION tx_isolation='READ-COMMITTED', autocommit=0, sql_notes=0, time_zone='+00:00',
    sql_mode='STRICT_ALL_TABLES', innodb_lock_wait_timeout=4, idle_transaction_timeout=3"""  # a frozen client loses its locks
TABLES = """CREATE TABLE IF NOT EXISTS anarchon_jobs (job VARCHAR(200) PRIMARY KEY, first_ms BIGINT NOT NULL, paused_ms BIGINT,
    resumed_ms BIGINT, floor_ms BIGINT, info MEDIUMTEXT NOT NULL) $kind;
CREATE TABLE IF NOT EXISTS anarchon_runs ($run, status VARCHAR(20) NOT NULL, end_ms BIGINT NOT NULL, uncounted INT NOT NULL,
    finisher VARCHAR(100), PRIMARY KEY (job, slot_ms, space), KEY (job, status),
    FOREIGN KEY (job) REFERENCES anarchon_jobs (job) ON DELETE CASCADE) $kind;
CREATE TABLE IF NOT EXISTS anarchon_attempts ($run, status VARCHAR(20) NOT NULL, claimed_ms BIGINT NOT NULL, finished_ms BIGINT,
    error MEDIUMTEXT, PRIMARY KEY (job, slot_ms, space, attempt),
    FOREIGN KEY (job, slot_ms, space) REFERENCES anarchon_runs (job, slot_ms, space) ON DELETE CASCADE) $kind"""
ENTER = "INSERT INTO anarchon_jobs (job, first_ms, info) VALUES (%s, $now, %s) ON DUPLICATE KEY UPDATE job=VALUES(job)"
STATE = """SELECT $now now_ms, paused_ms, floor_ms, info, r.* FROM (SELECT 1) one
    LEFT JOIN anarchon_jobs j ON j.job=%s LEFT JOIN anarchon_runs r ON r.job=j.job AND slot_ms=%s AND space=%s"""
WIN = """INSERT INTO anarchon_runs VALUES (%s, %s, %s, %s, %s, %s, 'running', %s, 0, NULL) ON DUPLICATE KEY UPDATE
    attempt=VALUES(attempt), token=VALUES(token), instance=VALUES(instance), status='running', end_ms=VALUES(end_ms)"""
OLD = """SELECT slot_ms, space FROM (SELECT slot_ms, space, status, ROW_NUMBER() OVER (ORDER BY slot_ms DESC, space DESC) nth FROM
    anarchon_runs WHERE job=%s) r WHERE slot_ms<%s AND status NOT IN ('running', 'handed_over') AND (nth>%s OR slot_ms<%s-%s)"""
VIEW = "SELECT $now now_ms, job, slot_ms, space, status, attempt, instance, end_ms FROM anarchon_runs WHERE "
UNFINISHED = VIEW + "space<>'n' AND status IN ('running', 'handed_over') AND job IN "
HISTORY = "SELECT * FROM anarchon_attempts WHERE job=%s AND slot_ms>=%s ORDER BY slot_ms DESC, attempt DESC LIMIT %s"
PAUSE = """INSERT INTO anarchon_jobs (job, first_ms, info, paused_ms) VALUES (%s, $now, '', IF(%s, $now, NULL)) ON DUPLICATE KEY
    UPDATE resumed_ms=IF(%s OR paused_ms IS NULL, resumed_ms, $now), paused_ms=IF(%s, IFNULL(paused_ms, $now), NULL)"""


def _view(run: Row) -> RunView:
    left_ms = run["end_ms"] - run["now_ms"] or int(run["status"] == "running")  # C11, C16
    key = RunKey(run["job"], run["slot_ms"], run["space"])
    return RunView(key, RunStatus(run["status"]), run["attempt"], run["instance"], left_ms)


def _held(run: Row, token: str) -> bool:
    return bool(run["status"] == "running" and run["token"] == token)


async def _do(db: aiomysql.Cursor, sql: str, *values: object) -> list[Row]:
    await db.execute(sql.replace("$now", NOW).replace("$at", AT).replace("$run", RUN).replace("$kind", KIND), values)
    return list(await db.fetchall())


async def _set(db: aiomysql.Cursor, key: RunKey, columns: str, *values: object) -> None:
    await _do(db, " ".join(("UPDATE anarchon_runs SET", columns, "WHERE $at")), *values, *astuple(key))


async def _record(db: aiomysql.Cursor, key: RunKey, run: Row, *status_and_error: str | None) -> None:
    sql = "UPDATE anarchon_attempts SET status=%s, error=%s, finished_ms=%s WHERE $at AND attempt=%s"
    await _do(db, sql, *status_and_error, run["now_ms"], *astuple(key), run["attempt"])


async def _win(db: aiomysql.Cursor, request: ClaimRequest, now_ms: int, attempt: int) -> Claim:
    """Write the attempt, and forget what is final, old and beyond the history limits (C6, C20)."""
    job, who = request.key.job, (*astuple(request.key), attempt, request.token, request.instance)
    await _do(db, WIN, *who, now_ms + request.lease_ms)
    await _do(db, "INSERT INTO anarchon_attempts VALUES (%s, %s, %s, %s, %s, %s, 'running', %s, NULL, NULL)", *who, now_ms)
    for old in await _do(db, OLD, job, now_ms - request.keep_ms, request.history_size, now_ms, request.history_ttl_ms):
        await _do(db, "DELETE FROM anarchon_runs WHERE $at", job, old["slot_ms"], old["space"])
        await _do(db, "UPDATE anarchon_jobs SET floor_ms=GREATEST(%s, IFNULL(floor_ms, 0)) WHERE job=%s", old["slot_ms"], job)
    return Claim(Outcome.WON, attempt)


async def _again(db: aiomysql.Cursor, request: ClaimRequest, run: Row) -> Claim:
    now_ms, view = run["now_ms"], _view(run)
    if _held(run, request.token):  # C4
        await _set(db, request.key, "end_ms=%s", now_ms + request.lease_ms)
        return Claim(Outcome.WON, view.attempt)
    if view.status.final:  # C18
        return Claim(Outcome.DONE, winner=view.instance)
    if view.left_ms > 0:
        return Claim(Outcome.RUNNING, left_ms=view.left_ms, winner=view.instance)
    spent = view.attempt - run["uncounted"] >= request.attempt_limit or view.attempt >= ATTEMPTS_MAX  # C13
    if view.status is RunStatus.RUNNING:
        await _record(db, request.key, run, "interrupted" if spent else "lost", None)
    if not spent:
        return replace(await _win(db, request, now_ms, view.attempt + 1), winner=view.instance)  # C12
    await _set(db, request.key, "status='interrupted', token=NULL")
    return Claim(Outcome.DONE, winner=view.instance)


async def _first(db: aiomysql.Cursor, request: ClaimRequest, job: Row) -> Claim:
    key, now_ms, floor_ms = request.key, job["now_ms"], job["floor_ms"]
    scheduled = not (key.manual or key.note)
    late = scheduled and now_ms - key.slot_ms > request.max_late_ms
    if late or (floor_ms is not None and key.slot_ms <= floor_ms):  # C9, C6
        return Claim(Outcome.LATE)
    if scheduled and key.slot_ms > now_ms:
        return Claim(Outcome.EARLY, wait_ms=key.slot_ms - now_ms)
    if scheduled and job["paused_ms"] is not None:  # C10
        return Claim(Outcome.PAUSED)
    if request.exclusive and not key.note:  # C10
        for other in map(_view, await _do(db, UNFINISHED + "(%s)", key.job)):
            if other.left_ms > 0:
                return Claim(Outcome.OVERLAP, left_ms=other.left_ms, other=other.key, winner=other.instance)
    return await _win(db, request, now_ms, 1)


class MariaDBBackend(LeaseBackend):
    def __init__(self, connections: int = 8, **options: Any) -> None:
        self._options = {"charset": "utf8mb4", "connect_timeout": 4, "init_command": SESSION, "autocommit": None, **options}
        self._idle: list[Any] = []
        self._places = asyncio.Semaphore(connections)
        self._closed = False

    @classmethod
    def from_url(cls, url: BackendUrl) -> Self:
        connections = url.integer("max", 8, least=1, most=64)
        context = ssl.create_default_context() if url.flag("ssl", default=False) else None
        url.done()
        server = {"host": url.host or "localhost", "port": url.port or 3306, "db": url.path.strip("/"), "ssl": context}
        return cls(connections, user=url.username or "", password=url.password or "", **server)

    @asynccontextmanager
    async def _step(self) -> AsyncIterator[Any]:
        """Give a cursor in a transaction, committed in the end; what fails or is cancelled costs the connection."""
        async with self._places:
            keep, connection = False, self._idle.pop() if self._idle else aiomysql.Connection(**self._options)
            try:
                if connection.closed or asyncio.get_running_loop().time() - connection.last_usage > 60:  # too old to be trusted
                    connection.close()
                    await connection.ping()  # connects
                async with connection.cursor(aiomysql.DictCursor) as db:
                    yield db
                await connection.commit()
                keep = not self._closed
            except (aiomysql.Error, OSError, EOFError) as error:
                code = error.args[0] if isinstance(error, aiomysql.DatabaseError) else 2013
                kind = BackendUnavailable if code in AWAY else StoreSetupError if code in SETUP else BackendError
                raise kind(f"MariaDB at {self._options['host']}: {error}") from error
            finally:
                self._idle.append(connection) if keep else connection.close()

    async def open(self) -> None:
        self._closed = False
        async with self._step() as db:
            for sql in ("SELECT GET_LOCK('anarchon', 4)", *TABLES.split(";"), "SELECT RELEASE_LOCK('anarchon')"):
                await _do(db, sql)

    async def close(self) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    async def claim(self, request: ClaimRequest) -> Claim:
        async with self._step() as db:
            await _do(db, ENTER, request.key.job, request.info)
            new = db.rowcount == 1
            (state,) = await _do(db, STATE, *astuple(request.key))
            claim = await (_again if state["status"] else _first)(db, request, state)
            if new and not claim.won:
                await _do(db, "ROLLBACK")  # C9: no row of a job of which nothing was won
            elif request.info and request.info != state["info"]:
                await _do(db, "UPDATE anarchon_jobs SET info=%s WHERE job=%s", request.info, request.key.job)
                claim = replace(claim, other_info=state["info"] or None)
            return replace(claim, store_now_ms=state["now_ms"])

    @asynccontextmanager
    async def _run(self, key: RunKey) -> AsyncIterator[tuple[Any, Row]]:
        """Lock the job and read the run; without one its columns are None."""
        async with self._step() as db:
            await _do(db, "SELECT 1 FROM anarchon_jobs WHERE job=%s FOR UPDATE", key.job)
            yield db, (await _do(db, STATE, *astuple(key)))[0]

    async def finish(self, key: RunKey, token: str, result: RunResult) -> bool:
        async with self._run(key) as (db, run):
            if held := _held(run, token):
                await _record(db, key, run, result.status, result.error)
                await _set(db, key, "status=%s, token=NULL, finisher=%s", result.status, token)
            return held or run["finisher"] == token  # C18

    async def renew(self, key: RunKey, token: str, lease_ms: int) -> bool:
        async with self._run(key) as (db, run):
            if held := _held(run, token):
                await _set(db, key, "end_ms=%s", run["now_ms"] + lease_ms)
            return held

    async def release(
        self, key: RunKey, token: str, *, delay_ms: int = 0, counted: bool = False, error: str | None = None
    ) -> bool:
        async with self._run(key) as (db, run):
            if held := _held(run, token):
                await _record(db, key, run, "failed" if counted else "handed_over", error)
                columns = "status='handed_over', token=NULL, end_ms=%s, uncounted=uncounted+%s"
                await _set(db, key, columns, run["now_ms"] + delay_ms, int(not counted))
            return held

    async def _read(self, sql: str, *values: object) -> list[Row]:
        async with self._step() as db:
            return await _do(db, sql, *values)

    async def check(self, keys: Sequence[RunKey]) -> list[RunView | None]:
        sql = VIEW + (" OR ".join(["($at)"] * len(keys)) or "FALSE")
        found = {view.key: view for view in map(_view, await self._read(sql, *(value for key in keys for value in astuple(key))))}
        return [found.get(key) for key in keys]

    async def unfinished(self, jobs: Sequence[str]) -> list[RunView]:
        sql = UNFINISHED + f"({', '.join(['%s'] * len(jobs)) or 'NULL'}) ORDER BY slot_ms"
        return [_view(row) for row in await self._read(sql, *jobs)]

    async def history(self, job: str, *, limit: int, since_ms: int = 0) -> list[RunRecord]:
        rows = await self._read(HISTORY, job, since_ms, limit)
        return [RunRecord(**row | {"status": RunStatus(row["status"])}) for row in rows]

    async def jobs(self) -> list[JobView]:
        return [JobView(**row) for row in await self._read("SELECT * FROM anarchon_jobs ORDER BY job")]

    async def set_paused(self, job: str, paused: bool) -> None:
        await self._read(PAUSE, job, paused, paused, paused)

    async def now_ms(self) -> int:
        return int((await self._read("SELECT $now now_ms"))[0]["now_ms"])

    async def forget(self, job: str) -> None:
        await self._read("DELETE FROM anarchon_jobs WHERE job=%s", job)


@hookimpl
def anarchon_backend(url: BackendUrl) -> MariaDBBackend | None:
    return MariaDBBackend.from_url(url) if url.scheme in {"mysql", "mariadb"} else None
