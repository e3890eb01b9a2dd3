"""Whole workers and one fleet in virtual time: real gates, links and members, a network that fails.

The truth is what is really in flight at the host, over all workers.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any

from virtual_loop import VirtualLoop

from scrapy_hostgate.controller import Law
from scrapy_hostgate.fleet.member import WARY_S, FleetMember
from scrapy_hostgate.fleet.memory import MemoryFleet
from scrapy_hostgate.fleet.protocol import FleetError, HostRow, Talk, Told, Wake
from scrapy_hostgate.fleetrules import FleetRules
from scrapy_hostgate.gate import Gate
from scrapy_hostgate.observe.stats import GateStats
from scrapy_hostgate.outcome import Outcome
from scrapy_hostgate.pacer import Pace

HOST = "a.test"
CEILING = 3
LEASE_S = 6.0
TIMEOUT_S = 1.0


class Network:
    """Between the workers and the fleet: on a bad day messages are slow, lost or doubled."""

    def __init__(self, loop: VirtualLoop, draw: Random) -> None:
        self.fleet = MemoryFleet(clock=loop.time)
        self.random = draw
        self.bad = False
        self.down = False

    async def talk(self, host: str, said: Talk) -> Told:
        if not self.bad:
            await asyncio.sleep(self.random.uniform(0, 0.02))
            if self.down:
                raise FleetError("there is nobody")
            return await self.fleet.talk(host, said)
        fate = self.random.random()
        if fate < 0.1:
            # The message waits longer than the worker does, and arrives all the same.
            await asyncio.shield(asyncio.ensure_future(self._late(host, said)))
        elif fate < 0.2:
            raise FleetError("lost on the way there")
        told = await self.fleet.talk(host, said)
        if fate < 0.3:
            raise FleetError("lost on the way back")
        if fate < 0.5:
            await asyncio.sleep(self.random.uniform(0, 0.8))
            told = await self.fleet.talk(host, said)
        return told

    async def _late(self, host: str, said: Talk) -> None:
        await asyncio.sleep(2 * TIMEOUT_S)
        await self.fleet.talk(host, said)

    def restart(self) -> None:
        self.fleet._hosts.clear()


class Line:
    """One worker's client: what is common is the network behind it."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.cut = False

    async def talk(self, host: str, said: Talk) -> Told:
        if self.cut:
            raise FleetError("cut off")
        return await self.network.talk(host, said)

    async def ping(self) -> None:
        if self.cut or self.network.down:
            raise FleetError("there is nobody")

    async def hosts(self) -> list[HostRow]:
        return await self.network.fleet.hosts()

    async def listen(self, worker: str, wake: Wake) -> None:
        await self.network.fleet.listen(worker, wake)

    async def close(self) -> None:
        pass


class Worker:
    """A process that crawls the host: its gate, its membership, its requests."""

    def __init__(self, world: FleetWorld, number: int) -> None:
        self.world = world
        self.line = Line(world.network)
        draw = world.random
        # Its own monotonic clock: no two workers agree on the time.
        ahead_s = draw.choice((0.0, 30.0, -30.0, 3600.0))
        self.clock: Callable[[], float] = lambda: world.loop.time() + ahead_s
        stats = SimpleNamespace(
            **{name: self._count(name) for name in dir(GateStats) if not name.startswith("_")}
        )
        self.counts: Counter[str] = Counter()
        self.member = FleetMember(
            self.line,
            FleetRules(lease_s=LEASE_S, ttl_s=600.0, timeout_s=TIMEOUT_S),
            SimpleNamespace(spider=None),  # type: ignore[arg-type]
            SimpleNamespace(stats=stats, adopted=lambda gate, decision: None),  # type: ignore[arg-type]
            clock=self.clock,
            call_later=world.loop.call_later,
        )
        self.member.name = f"worker{number}"
        self.gate = Gate(
            HOST,
            Law(start=2, ceiling=CEILING, recovery_delay_s=2.0),
            Pace(rate=draw.choice((None, None, 4.0)), max_pause_s=20.0),
            clock=self.clock,
            call_later=world.loop.call_later,
            uniform=draw.uniform,
            admission=self.member.admission,
        )
        self.tasks: set[asyncio.Task[None]] = set()
        self.killed = False

    def _count(self, name: str) -> Callable[..., None]:
        def count(*_: Any, **__: Any) -> None:
            self.counts[name] += 1

        return count

    def ask(self) -> None:
        task = asyncio.ensure_future(self._request())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _request(self) -> None:
        gate, world = self.gate, self.world
        permit = gate.arrive()
        try:
            while not gate.left(permit):
                if not permit.granted:
                    wakes = world.loop.create_future()
                    permit.on_grant = partial(_wake, wakes)
                    await wakes
            world.departed(self)
            try:
                latency_s = world.random.choice((0.01, 0.1, 0.5, 2.0))
                await asyncio.sleep(latency_s)
            finally:
                world.landed(self)
            refused = world.random.random() < world.refusing
            outcome = Outcome.REFUSED if refused else Outcome.OK
            gate.record(permit, outcome, latency_s)
        finally:
            if not self.killed:
                gate.leave(permit)

    async def kill(self) -> None:
        """As SIGKILL does: its connections break, and it says nothing to anybody any more."""
        self.killed = True
        self.line.cut = True
        self.member._closed = True
        await stop(self.tasks)
        link = self.member._links[HOST]
        link._closed = True
        exchange = {link._exchange} if link._exchange is not None else set()
        await stop(self.member._tasks | exchange)
        for timer in (link._timer, self.member._wary_timer, self.gate.semaphore._timer):
            if timer is not None:
                timer.cancel()


def _wake(wakes: asyncio.Future[None]) -> None:
    if not wakes.done():
        wakes.set_result(None)


async def stop(tasks: set[Any]) -> None:
    tasks = set(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class FleetWorld:
    """Raises ``AssertionError`` at the first departure too many."""

    def __init__(self, loop: VirtualLoop, seed: int) -> None:
        self.loop = loop
        self.random = Random(seed)
        self.network = Network(loop, self.random)
        self.refusing = self.random.choice((0.0, 0.05, 0.3))
        self.workers: list[Worker] = []
        self.made = 0
        self.in_flight: Counter[Worker] = Counter()
        self.departures = 0
        self.shaken_at = -1e9
        """When the network or the fleet last misbehaved, or the last worker was killed."""
        for _ in range(self.random.randint(2, 4)):
            self.start()

    def start(self) -> None:
        self.made += 1
        self.workers.append(Worker(self, self.made))

    def departed(self, worker: Worker) -> None:
        self.departures += 1
        self.in_flight[worker] += 1
        whole = sum(self.in_flight.values())
        assert self.in_flight[worker] <= CEILING, "more than one worker may ever have"
        if worker.member.alone or worker.member.wary:
            assert self.in_flight[worker] == 1, "alone, with more than one in flight"
        # Whatever goes wrong: never more than the ceiling and one for each who is, or was, alone.
        assert whole <= CEILING + len(self.workers), "unbounded"
        if self.calm:
            assert whole <= CEILING, "more than the ceiling over all workers"
            shared = self.network.fleet._hosts[HOST]
            assert len(shared.permits) >= whole, "the fleet does not know who is in flight"

    @property
    def calm(self) -> bool:
        """Whether nothing went wrong for as long as it takes everybody to be back."""
        quiet_s = self.loop.time() - self.shaken_at
        return quiet_s > 2 * LEASE_S + WARY_S and not any(one.member.alone for one in self.workers)

    def landed(self, worker: Worker) -> None:
        self.in_flight[worker] -= 1

    async def run(self, moves: int) -> None:
        for _ in range(moves):
            await self._move(self.random.random(), self.random.choice(self.workers))
        await self._end()

    async def _move(self, fate: float, worker: Worker) -> None:
        if fate < 0.55:
            for _ in range(self.random.randint(1, 3)):
                worker.ask()
        elif fate < 0.85:
            await asyncio.sleep(self.random.choice((0.0, 0.05, 0.5, 3.0, 30.0)))
        elif fate < 0.88:
            self._shake()
            self.network.bad = not self.network.bad
        elif fate < 0.91:
            self._shake()
            self.network.down = not self.network.down
        elif fate < 0.93:
            self._shake()
            self.network.restart()
        elif fate < 0.96:
            self._shake()
            worker.line.cut = not worker.line.cut
        elif fate < 0.98 and worker.tasks:
            next(iter(worker.tasks)).cancel()
        elif len(self.workers) > 1:
            self.workers.remove(worker)
            await worker.kill()
            self.start()

    def _shake(self) -> None:
        self.shaken_at = self.loop.time()

    async def _end(self) -> None:
        """The network heals: everybody is served, then gives back what it had."""
        self._shake()
        self.network.bad = self.network.down = False
        for worker in self.workers:
            worker.line.cut = False
        self.refusing = 0.0
        deadline = self.loop.time() + 7200
        while any(worker.tasks for worker in self.workers):
            assert self.loop.time() < deadline, f"somebody waits for ever: {self.workers}"
            await asyncio.sleep(1)
        # What those who were killed had in flight has lapsed by then.
        await asyncio.sleep(2 * LEASE_S)
        for worker in self.workers:
            assert worker.gate.in_flight == worker.gate.waiting == 0
            await worker.member.close()
            assert all(link.idle for link in worker.member._links.values())
        shared = self.network.fleet._hosts.get(HOST)
        if shared is not None:
            names = {worker.member.name for worker in self.workers}
            now = self.loop.time()
            left = [
                id_
                for id_, until in shared.permits.items()
                if until > now and id_.partition(":")[0] in names
            ]
            assert not left, f"leases left behind: {left}"
            asks = [
                id_
                for id_, until in shared.queue.items()
                if until > now and id_.partition(":")[0] in names
            ]
            assert not asks, f"asks left behind: {asks}"


def run_world(seed: int, moves: int = 60) -> FleetWorld:
    """One example, in virtual time. The same seed is the same example."""
    # Where the package draws its jitter.
    random.seed(seed)
    loop = VirtualLoop()
    errors: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: errors.append(context))
    logger = logging.getLogger("scrapy_hostgate")
    level = logger.level
    # Thousands of outages, each with its warning.
    logger.setLevel(logging.ERROR)
    try:
        world = FleetWorld.__new__(FleetWorld)

        async def whole() -> None:
            world.__init__(loop, seed)  # type: ignore[misc]
            await world.run(moves)

        loop.run_until_complete(whole())
        assert not errors, errors
        assert not asyncio.all_tasks(loop), "a task is left"
    finally:
        left = asyncio.all_tasks(loop)
        loop.run_until_complete(stop(left))
        loop.close()
        logger.setLevel(level)
    return world
