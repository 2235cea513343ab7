"""Worker processes, their journals and their gates: started, stopped, killed, frozen, by pid and always undone."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from anarchon.clock import Clock

from anarchon_conformance.chaos.journal import Event, Tail, What
from anarchon_conformance.chaos.plan import WorkerPlan
from anarchon_conformance.gate import Gate, reroute
from anarchon_conformance.target import Target

__all__ = ["Fleet", "Instance"]

INSTANCES_MAX = 400
READY_MS = 20_000.0

STOP_MS = 8_000.0
LOOK_MS = 15.0


@dataclass(slots=True)
class Instance:
    """One worker process. `gate` is its way to the store, None where the store has no wire."""

    name: str
    process: subprocess.Popen[bytes]
    tail: Tail
    gate: Gate | None
    said: Path
    """What the process wrote for people."""
    frozen: bool = False
    doomed: bool = False
    """Whether it was told to end, or killed."""

    @property
    def alive(self) -> bool:
        """Whether the process has not ended."""
        return self.process.poll() is None

    @property
    def fell(self) -> str | None:
        """How a process ended that nobody told to, or None."""
        code = self.process.poll()
        if code is None or self.doomed:
            return None
        lines = self.said.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return f"{self.name} ended by itself with exit status {code}: {lines[-1] if lines else 'no word why'}"

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to this process, if it is there."""
        self.doomed = self.doomed or (self.alive and number in {signal.SIGTERM, signal.SIGKILL})
        self.process.send_signal(number)  # polls first: never reaches a pid that is somebody else's by now

    def freeze(self) -> None:
        """Stop the process where it is."""
        self.signal(signal.SIGSTOP)
        self.frozen = True

    def thaw(self) -> None:
        """Let it go on."""
        self.signal(signal.SIGCONT)
        self.frozen = False


class Fleet:
    """Some workers on one store. Leaving the `async with` ends every process and gate of it."""

    def __init__(self, target: Target, plan: WorkerPlan) -> None:
        self._target = target
        self._plan = plan
        self._clock: Clock = target.clock
        self._folder = tempfile.TemporaryDirectory(prefix="anarchon-chaos-")
        self.instances: list[Instance] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            for instance in self.instances:
                instance.thaw()
                instance.signal(signal.SIGKILL)
            for instance in self.instances:
                instance.process.wait(STOP_MS / 1000)
                instance.tail.read()
                if instance.gate is not None:
                    await instance.gate.close()
        finally:
            self._folder.cleanup()

    @property
    def living(self) -> list[Instance]:
        """The instances that run and are not frozen."""
        return [instance for instance in self.instances if instance.alive and not instance.frozen]

    @property
    def fallen(self) -> list[str]:
        """How the workers ended that nobody had told to."""
        return [fell for instance in self.instances if (fell := instance.fell) is not None]

    @property
    def events(self) -> list[Event]:
        """Everything that the journals say so far, in the order in which it was told."""
        for instance in self.instances:
            instance.tail.read()
        return sorted((event for instance in self.instances for event in instance.tail.events), key=lambda event: event.at_ms)

    async def start(self, *, skew_ms: int = 0) -> Instance:
        """Start one more worker, behind a gate of its own where the store has a wire."""
        assert len(self.instances) < INSTANCES_MAX, "a fleet is bounded"
        number = len(self.instances)
        name = f"w{number}"
        wire = self._target.wire()
        gate, url = None, self._plan.url
        if wire is not None:
            gate = Gate(*wire, ungated=self._target.ungated, clock=self._clock)
            await gate.start()
            url = reroute(url, gate.host, gate.port)
        journal = Path(self._folder.name) / f"{name}.jsonl"
        plan = replace(
            self._plan,
            url=url,
            instance=name,
            journal=str(journal),
            skew_ms=skew_ms,
            look_back_ms=max(0, skew_ms),
            seed=self._plan.seed * 1_000 + number,
        )
        command = (sys.executable, "-m", "anarchon_conformance.chaos.worker", plan.to_argument())
        said = journal.with_suffix(".txt")
        with said.open("wb") as out:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)  # noqa: S603, ASYNC220 - our own interpreter; starting takes no time
        instance = Instance(name, process, Tail(journal), gate, said)
        self.instances.append(instance)
        return instance

    async def ready(self, instance: Instance) -> bool:
        """Wait until a worker is at work; False if it ended or took too long."""
        return await self.wait_for(instance, frozenset({What.READY}), READY_MS) is not None

    async def wait_for(self, instance: Instance, wanted: frozenset[What], timeout_ms: float) -> Event | None:
        """Wait for the next event of a kind from one worker; what it told before a call of this method counts once."""
        end_ms = self._clock.monotonic_ms() + timeout_ms
        while True:
            over = not instance.alive
            found = next((event for event in instance.tail.read() if event.what in wanted), None)
            if found is not None or over or self._clock.monotonic_ms() > end_ms:
                return found
            await self._clock.sleep_ms(LOOK_MS)

    async def wait_for_any(self, wanted: frozenset[What], timeout_ms: float) -> tuple[Instance, Event] | None:
        """Wait for the next event of a kind from any living worker; events from before the call do not count."""
        for instance in self.instances:
            instance.tail.read()
        end_ms = self._clock.monotonic_ms() + timeout_ms
        while self._clock.monotonic_ms() < end_ms:
            for instance in self.living:
                found = next((event for event in instance.tail.read() if event.what in wanted), None)
                if found is not None:
                    return instance, found
            await self._clock.sleep_ms(LOOK_MS)
        return None

    async def ended(self, instance: Instance, timeout_ms: float) -> bool:
        """Wait until a worker has ended; False if it does not."""
        end_ms = self._clock.monotonic_ms() + timeout_ms
        while instance.alive and self._clock.monotonic_ms() < end_ms:
            await self._clock.sleep_ms(LOOK_MS)
        return not instance.alive

    async def stop(self) -> list[str]:
        """Ask every worker to end; the names of those that did not."""
        for instance in self.instances:
            instance.thaw()
            instance.signal(signal.SIGTERM)
        end_ms = self._clock.monotonic_ms() + STOP_MS
        return [
            instance.name for instance in self.instances if not await self.ended(instance, end_ms - self._clock.monotonic_ms())
        ]
