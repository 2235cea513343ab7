"""One client, own or borrowed, of a server or a cluster: every call on its loop, in time, its failures explained."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from anarchon.errors import BackendError, BackendTimeout, BackendUnavailable
from redis import exceptions as driver
from redis._parsers import AsyncCommandsParser
from redis.asyncio import Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from anarchon_redis.failures import FAILURES, explain
from anarchon_redis.lua import SOURCES
from anarchon_redis.options import CALL_TIMEOUT_MS, CONNECTIONS_MAX, Address
from anarchon_redis.wire import Command, Lent, OwnPool, Pool, Reply, exchange

__all__ = ["Client", "Command", "Link", "Reply", "script"]

T = TypeVar("T")
Client = Redis | RedisCluster
Judge = Callable[[Command, Reply], bool]

WAIT_MS: Final = 1_000
CLOSE_MS: Final = 2_000
SHA: Final = 1
"""Where a script's SHA-1 stands in its command."""
_RAW: Final = {"NEVER_DECODE": True}


def script(sha: str, keys: Sequence[str], *arguments: str | int) -> Command:
    """Return the command that runs a script of `anarchon_redis.lua`."""
    return ("EVALSHA", sha, len(keys), *keys, *arguments)


class Link:
    """The wire of a backend."""

    def __init__(
        self,
        where: Address | Client,
        *,
        cluster: bool,
        wait_replicas: int,
        home: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._where = where
        self._home = home
        self._wait_replicas = wait_replicas
        self._pool: Pool | None = None
        self._cluster: RedisCluster | None = None
        self._places: asyncio.Semaphore | None = None
        self.cluster = cluster
        self.place = f"Redis at {where}" if isinstance(where, Address) else "Redis (borrowed client)"

    # -- life

    async def open(self) -> None:
        """Make ready; the first command connects."""
        if self._places is not None:
            return
        where = self._where
        if isinstance(where, RedisCluster):
            self._cluster = where
        elif isinstance(where, Redis):
            self._pool = where.connection_pool
        elif self.cluster:
            self._cluster = _cluster_client(where)
        else:
            self._pool = OwnPool(where)
        self._places = asyncio.Semaphore(CONNECTIONS_MAX)

    async def close(self) -> None:
        """Close an own client with all its connections; leave a borrowed one as it is (C24)."""
        pool, cluster = self._pool, self._cluster
        self._pool = self._cluster = self._places = None
        if not isinstance(self._where, Address):
            return
        try:
            async with asyncio.timeout(CLOSE_MS / 1000):
                if isinstance(pool, OwnPool):
                    await pool.close()
                if cluster is not None:
                    await cluster.aclose()
        except (TimeoutError, *FAILURES):
            pass  # the server is gone; there is nothing left to close in good order

    # -- one call of the backend

    async def within(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do one call: on the loop that the client belongs to, within `CALL_TIMEOUT_MS`, its failures explained (C23).

        Raises:
            BackendError: the call failed, or gave no answer in time.
        """
        if self._home is None or self._home is asyncio.get_running_loop():
            return await self._bounded(work)
        if not self._home.is_running():
            msg = f"{self.place}: the event loop that it belongs to does not run; open the scheduler while it does"
            raise BackendUnavailable(msg)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._bounded(work), self._home))

    async def _bounded(self, work: Callable[[], Awaitable[T]]) -> T:
        limit = asyncio.timeout(CALL_TIMEOUT_MS / 1000)
        try:
            async with limit:
                return await work()
        except TimeoutError as error:
            if not limit.expired():
                raise explain(error, self.place) from error
            msg = f"{self.place} did not answer within {CALL_TIMEOUT_MS / 1000:g} s"
            raise BackendTimeout(msg) from error
        except FAILURES as error:
            raise explain(error, self.place) from error

    # -- commands, within a call

    async def run(self, command: Command) -> Reply:
        """Send one command and return its raw reply.

        Raises:
            RedisError: as the driver says it; `within` explains.
        """
        (reply,) = await self._ask([command])
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def run_anywhere(self, command: Command) -> Reply:
        """Send a command that names no key, to one node. A cluster's client may return it read.

        Raises:
            RedisError: as the driver says it; `within` explains.
        """
        if self._cluster is None:
            return await self.run(command)
        await self._cluster.initialize()
        node = self._cluster.get_default_node()
        return await self._cluster.execute_command(*command, target_nodes=node, **_RAW)

    async def run_many(self, commands: Sequence[Command]) -> list[Reply | BackendError]:
        """Send commands together; one reply each, a failed one is its error."""
        return self.explained(await self._ask(commands))

    async def run_sure(self, commands: Sequence[Command], won: Judge) -> list[Reply | BackendError]:
        """Send claims; where `wait_replicas` is set, a win counts only once that many replicas have it.

        A win that they do not confirm is an error: unknown, and asked again with the same token (C5).
        """
        return self.explained(await self._ask(commands, won if self._wait_replicas else None))

    def explained(self, replies: Sequence[Reply]) -> list[Reply | BackendError]:
        """Return replies with the driver's errors among them as errors of ours."""
        return [explain(reply, self.place) if isinstance(reply, Exception) else reply for reply in replies]

    async def _ask(self, commands: Sequence[Command], won: Judge | None = None) -> list[Reply]:
        if self._places is None:
            msg = f"{self.place} is not open: open the backend first"
            raise BackendUnavailable(msg)
        if self._cluster is not None:
            cluster = self._cluster
            return list(await asyncio.gather(*(self._one(cluster, command) for command in commands)))
        assert self._pool is not None
        async with self._places, Lent(self._pool) as connection:
            replies = await exchange(connection, commands)
            gone = [place for place, reply in enumerate(replies) if isinstance(reply, driver.NoScriptError)]
            if gone:
                # The scripts were flushed, or this server is a new primary: load them, then ask what did not run again.
                sources = sorted({str(commands[place][SHA]) for place in gone})
                again: list[Command] = [("SCRIPT", "LOAD", SOURCES[sha]) for sha in sources]
                again += [commands[place] for place in gone]
                for place, reply in zip(gone, (await exchange(connection, again))[len(sources) :], strict=True):
                    replies[place] = reply
            if won is None or not any(won(command, reply) for command, reply in zip(commands, replies, strict=True)):
                return replies
            # WAIT counts what was written before on its own connection.
            (have,) = await exchange(connection, [("WAIT", self._wait_replicas, WAIT_MS)])
        if isinstance(have, int) and have >= self._wait_replicas:
            return replies
        msg = f"{have} of {self._wait_replicas} replicas confirmed this claim within {WAIT_MS / 1000:g} s"
        weak = driver.ConnectionError(msg)
        return [weak if won(command, reply) else reply for command, reply in zip(commands, replies, strict=True)]

    async def _one(self, cluster: RedisCluster, command: Command) -> Reply:
        assert self._places is not None
        try:
            async with self._places:
                try:
                    return await cluster.execute_command(*command, **_RAW)
                except driver.NoScriptError:
                    # EVAL runs the script and loads it on the node that holds these keys.
                    return await cluster.execute_command("EVAL", SOURCES[str(command[SHA])], *command[SHA + 1 :], **_RAW)
        except FAILURES as error:
            return error


class FirstKey(AsyncCommandsParser):
    """Finds a command's node by its first argument, where our commands have their key, or the first of one job's keys.

    Scripts are not asked about: the driver finds their keys itself. Commands without a key are sent to a node by name.

    The driver would ask each cluster that it connects to for all commands; reading that answer keeps the loop busy for 0.1 s.
    """

    __slots__ = ()

    async def initialize(self, node: ClusterNode | None = None) -> None:
        """Ask for nothing."""

    async def get_keys(self, *args: Any) -> tuple[str, ...] | None:
        """Return the key that stands first; further ones carry the same hash tag."""
        return args[1:2] or None


def _cluster_client(address: Address) -> RedisCluster:
    client = RedisCluster(
        host=address.host,
        port=address.port,
        username=address.username,
        password=address.password,
        ssl=address.tls,
        protocol=2,
        max_connections=CONNECTIONS_MAX,
        socket_timeout=CALL_TIMEOUT_MS / 1000,
        socket_connect_timeout=CALL_TIMEOUT_MS / 1000,
        retry=Retry(NoBackoff(), 0),
    )
    client.commands_parser = FirstKey()
    return client
