"""Our stores as targets of the kit, with every side door that they have."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from anarchon.backend import Backend
from anarchon.memory import MemoryBackend, MemoryStore
from anarchon_conformance import Profile, Report, RunOptions, Target, Tier, run
from anarchon_conformance.report import judge
from stores.faketime import Stepped, SteppedPostgres, SteppedRedis70
from stores.fleet import Fleet
from stores.nats import Nats, Nats29, Nats215
from stores.pgbouncer import PgBouncer
from stores.postgres import Postgres
from stores.rabbitmq import RabbitMQ, RabbitMQ40, RabbitMQ310
from stores.redis import Redis, Redis70, Redis86, RedisCluster70, Valkey91
from stores.server import Server
from zoo.sqlite import SQLiteTarget, SteppedClock

__all__ = ["TARGETS", "Ours"]

SEED = 20_261_201
ALL = (Tier.CLAUSES, Tier.DUELS, Tier.PLANS, Tier.CHAOS)
UNKILLED = (Tier.CLAUSES, Tier.DUELS, Tier.PLANS)
CLAUSES = (Tier.CLAUSES,)
SHORT = (Tier.CLAUSES, Tier.DUELS)
"""Every server has one target with all tiers; its other ways in are the same code behind another door. At night all run all."""


class MemoryTarget(Target):
    """The reference on a clock of the test's."""

    url = "memory://kit"

    def __init__(self) -> None:
        self.hands = SteppedClock()
        self.store = MemoryStore(self.hands)

    def make(self, url: str) -> Backend:
        return MemoryBackend(self.store)

    async def step_clock(self, delta_ms: int) -> None:
        self.hands.stepped_ms += delta_ms


def synced(kind: type[Redis]) -> type[Redis]:
    """Return a kind of Redis that writes each command through before it answers.

    With `everysec` Redis puts the write itself off while an fsync is under way: on a busy disk a killed server loses
    claims that it had acknowledged.
    """
    settings = ("--appendonly", "yes", "--appendfsync", "always", "--save", "")
    return type(f"Synced{kind.__name__}", (kind,), {"settings": settings})


class ServerTarget(Target):
    """A store of our fleet, which may be killed; `url` may lead to it through something else."""

    def __init__(self, server: Server, url: str) -> None:
        self.server = server
        self.url = url

    async def kill_store(self) -> None:
        def again() -> None:
            self.server.kill()
            self.server.start()

        await asyncio.to_thread(again)

    def wire(self) -> tuple[str, int] | None:
        # A cluster's client follows the addresses that the cluster tells: a gate would be walked around.
        return None if "cluster=true" in self.url else super().wire()

    async def restart_store(self) -> None:
        await asyncio.to_thread(self.server.restart)


class SteppedTarget(ServerTarget):
    """A store whose clock may be stepped."""

    def __init__(self, server: Stepped, url: str) -> None:
        super().__init__(server, url)
        self._stepped = server
        self._offset_ms = 0

    async def step_clock(self, delta_ms: int) -> None:
        self._offset_ms += delta_ms
        await asyncio.to_thread(self._stepped.step_clock, self._offset_ms)


@dataclass(frozen=True, slots=True)
class Ours:
    """One of our targets: what it needs, how it is made, which tiers it runs by default."""

    name: str
    package: str
    make: Callable[[Fleet, Path], Target]
    needs: tuple[type[Server], ...] = ()
    tiers: tuple[Tier, ...] = ALL
    at_night: tuple[Tier, ...] = ALL

    def report(self, fleet: Fleet, folder: Path, profile: Profile, seed: int = SEED) -> Report:
        """Run the kit on it."""
        target, options = self.make(fleet, folder), RunOptions(seed=seed, profile=profile)
        if profile is not Profile.NIGHTLY:
            return run(target, options, tiers=self.tiers)
        if isinstance(target, RabbitMQTarget):
            return self._night_of_two_brokers(target, options, folder)
        return run(target, options, tiers=self.at_night)

    def _night_of_two_brokers(self, target: RabbitMQTarget, options: RunOptions, folder: Path) -> Report:
        """Give the storm a broker of its own: the thousands of queues that duels leave make each start take half a minute."""
        target.spared = frozenset()
        calm = run(target, options, tiers=UNKILLED)
        with Fleet() as fleet:
            other = self.make(fleet, folder)
            assert isinstance(other, RabbitMQTarget)
            other.spared = frozenset()
            storm = run(other, options, tiers=(Tier.CHAOS,))
        tiers = calm.tiers + storm.tiers
        return replace(calm, tiers=tiers, rows=judge(tiers, target.waivers, lease=calm.lease))


def _postgres(fleet: Fleet, folder: Path) -> Target:
    server = fleet.new(Postgres)
    return ServerTarget(server, server.url())


def _stepped_postgres(fleet: Fleet, folder: Path) -> Target:
    server = fleet.new(SteppedPostgres)
    return SteppedTarget(server, server.url())


def _stepped_redis(fleet: Fleet, folder: Path) -> Target:
    server = fleet.new(SteppedRedis70)
    return SteppedTarget(server, server.url())


def _pooled(fleet: Fleet, folder: Path) -> Target:
    server = fleet.new(Postgres)
    return ServerTarget(server, fleet.adopt(PgBouncer.before(server)).url())


def _redis(kind: type[Redis], strategy: str) -> Callable[[Fleet, Path], Target]:
    def make(fleet: Fleet, folder: Path) -> Target:
        server = fleet.shared(_SYNCED[kind])
        return ServerTarget(server, server.url(options={"strategy": strategy, "prefix": f"kit-{strategy}:"}))

    return make


class NatsTarget(ServerTarget):
    """A NATS server: each side asks now and then whether the other is there."""

    def ungated(self, chunk: bytes) -> bool:
        return chunk in {b"PING\r\n", b"PONG\r\n"}


def _nats(kind: type[Nats], strategy: str) -> Callable[[Fleet, Path], Target]:
    def make(fleet: Fleet, folder: Path) -> Target:
        server = fleet.shared(kind)
        return NatsTarget(server, server.url(options={"strategy": strategy, "prefix": f"kit-{strategy}"}))

    return make


class RabbitMQTarget(ServerTarget):
    """A RabbitMQ broker: each side sends an empty frame now and then."""

    spared: frozenset[str] = frozenset()
    """What is left to the night and to `anarchon-rabbitmq/tests`, because each start of a process takes seconds."""

    def offers(self, name: str) -> bool:
        return name not in self.spared and super().offers(name)

    def ungated(self, chunk: bytes) -> bool:
        return chunk == b"\x08\x00\x00\x00\x00\x00\x00\xce"


def _rabbitmq(kind: type[RabbitMQ], strategy: str, spared: str = "kill_store") -> Callable[[Fleet, Path], Target]:
    def make(fleet: Fleet, folder: Path) -> Target:
        server = fleet.shared(kind)
        target = RabbitMQTarget(server, server.url(options={"strategy": strategy, "prefix": f"kit-{strategy}."}))
        target.spared = frozenset({spared})
        return target

    return make


_SYNCED: dict[type[Redis], type[Redis]] = {kind: synced(kind) for kind in (Redis70, Redis86, Valkey91, RedisCluster70)}

TARGETS = (
    Ours("memory", "anarchon-core", lambda fleet, folder: MemoryTarget(), tiers=UNKILLED, at_night=UNKILLED),
    Ours("SQLite", "anarchon-sqlite", lambda fleet, folder: SQLiteTarget(folder / "kit.db")),
    Ours("PostgreSQL 15", "anarchon-postgres", _postgres, (Postgres,)),
    Ours("PostgreSQL 15, clock stepped", "anarchon-postgres", _stepped_postgres, (SteppedPostgres,), CLAUSES, UNKILLED),
    Ours("PostgreSQL 15 through PgBouncer", "anarchon-postgres", _pooled, (Postgres, PgBouncer), SHORT),
    Ours("Redis 7.0 lease", "anarchon-redis", _redis(Redis70, "lease"), (Redis70,)),
    Ours("Redis 7.0 stream-id", "anarchon-redis", _redis(Redis70, "stream-id"), (Redis70,), SHORT),
    Ours("Redis 7.0 script", "anarchon-redis", _redis(Redis70, "script"), (Redis70,), SHORT),
    Ours("Redis 8.6 idmp", "anarchon-redis", _redis(Redis86, "idmp"), (Redis86,), SHORT),
    Ours("Redis 8.6 lease", "anarchon-redis", _redis(Redis86, "lease"), (Redis86,), CLAUSES),
    Ours("Redis 8.6 stream-id", "anarchon-redis", _redis(Redis86, "stream-id"), (Redis86,), CLAUSES),
    Ours("Redis 8.6 script", "anarchon-redis", _redis(Redis86, "script"), (Redis86,), CLAUSES),
    Ours("Valkey 9.1 lease", "anarchon-redis", _redis(Valkey91, "lease"), (Valkey91,), SHORT),
    Ours("Valkey 9.1 stream-id", "anarchon-redis", _redis(Valkey91, "stream-id"), (Valkey91,), CLAUSES),
    Ours("Valkey 9.1 script", "anarchon-redis", _redis(Valkey91, "script"), (Valkey91,), CLAUSES),
    Ours("Redis 7.0 lease, clock stepped", "anarchon-redis", _stepped_redis, (SteppedRedis70,), CLAUSES, UNKILLED),
    Ours("Redis 7.0 cluster lease", "anarchon-redis", _redis(RedisCluster70, "lease"), (RedisCluster70,), CLAUSES),
    Ours("NATS 2.9 msg-id", "anarchon-nats", _nats(Nats29, "msg-id"), (Nats29,), SHORT),
    Ours("NATS 2.9 lease", "anarchon-nats", _nats(Nats29, "lease"), (Nats29,)),
    Ours("NATS 2.9 cas", "anarchon-nats", _nats(Nats29, "cas"), (Nats29,), SHORT),
    Ours("NATS 2.15 msg-id", "anarchon-nats", _nats(Nats215, "msg-id"), (Nats215,), SHORT),
    Ours("NATS 2.15 lease", "anarchon-nats", _nats(Nats215, "lease"), (Nats215,), SHORT),
    Ours("NATS 2.15 cas", "anarchon-nats", _nats(Nats215, "cas"), (Nats215,), SHORT),
    Ours("RabbitMQ 3.10 token", "anarchon-rabbitmq", _rabbitmq(RabbitMQ310, "token"), (RabbitMQ310,), SHORT),
    Ours("RabbitMQ 3.10 gate", "anarchon-rabbitmq", _rabbitmq(RabbitMQ310, "gate"), (RabbitMQ310,), SHORT),
    Ours("RabbitMQ 4.0 token", "anarchon-rabbitmq", _rabbitmq(RabbitMQ40, "token", "restart_store"), (RabbitMQ40,)),
    Ours("RabbitMQ 4.0 gate", "anarchon-rabbitmq", _rabbitmq(RabbitMQ40, "gate"), (RabbitMQ40,), SHORT),
)
