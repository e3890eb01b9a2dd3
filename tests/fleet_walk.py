"""Any order of what workers say to a fleet, with crashes, lost and doubled messages, and restarts.

Each message goes to a real Redis and, at the very moment of Redis's own clock, to the fleet in
memory: the two must give the same answer to the last digit. What must hold besides is checked after
every message.
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from scrapy_hostgate.fleet.memory import MemoryFleet
from scrapy_hostgate.fleet.protocol import AskAgain, Bounds, Change, Granted, Known, Talk, Told
from scrapy_hostgate.fleet.redisfleet import RedisFleet, keys_of

BOUNDS = (
    Bounds(lease_s=0.06, wait_s=0.03, ttl_s=20),
    Bounds(start=1, ceiling=1, lease_s=0.06, wait_s=0.03, ttl_s=20),
    Bounds(spacing_s=0.01, lease_s=0.06, wait_s=0.03, ttl_s=20),
    Bounds(start=3, rate_s=0.008, burst=2, lease_s=0.06, wait_s=0.03, ttl_s=20),
    Bounds(lease_s=0.4, wait_s=0.13, ttl_s=20),
)
SLEEPS_S = (0.002, 0.02, 0.07)
# Redis keeps a tenth of a millisecond.
TOLERANCE_S = 0.00021


@dataclass
class Member:
    """A worker as the fleet sees it: what it has in flight, asks for, and has still to tell."""

    name: str
    bounds: Bounds
    held: list[str] = field(default_factory=list)
    asks: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    known: Known = field(default_factory=Known)


class FleetWalk:
    """One host, some workers, both fleets. Raises ``AssertionError`` at the first thing wrong."""

    def __init__(self, client: Any, fleet: RedisFleet, seed: int) -> None:
        self.random = Random(seed)
        self.host = f"walk-{seed}.test"
        self.client = client
        self.redis = fleet
        self.now = 0.0
        self.memory = MemoryFleet(clock=lambda: self.now)
        self.names = itertools.count(1)
        self.ids = itertools.count(1)
        self.members = [self._member() for _ in range(self.random.randint(1, 4))]
        self.everybody: set[str] = set()
        self.epoch = 0
        self.leases = 0
        self.talks = 0

    def _member(self) -> Member:
        return Member(f"w{next(self.names)}", self.random.choice(BOUNDS))

    # -- moves ----------------------------------------------------------------------------------

    async def walk(self, moves: int) -> None:
        everything = (
            (10, self.ask),
            (6, self.end),
            (14, self.talk),
            (3, self.decide),
            (2, self.pause),
            (2, self.doubled),
            (3, self.reply_lost),
            (1, self.request_lost),
            (2, self.withdraw),
            (2, self.crash),
            (1, self.restart),
            (3, self.sleep),
        )
        chosen = self.random.choices(
            [move for _, move in everything], [weight for weight, _ in everything], k=moves
        )
        for move in chosen:
            await move()
        await self.finish()

    async def ask(self) -> None:
        member = self.random.choice(self.members)
        if len(member.asks) < 4:
            ask = f"{member.name}:{next(self.ids)}"
            assert ask not in self.everybody, "an id is shared"
            self.everybody.add(ask)
            member.asks.append(ask)
        await self.say(member)

    async def end(self) -> None:
        member = self.random.choice(self.members)
        if member.held:
            member.ended.append(member.held.pop(self.random.randrange(len(member.held))))
        if self.random.random() < 0.7:
            await self.say(member)

    async def talk(self) -> None:
        await self.say(self.random.choice(self.members))

    async def withdraw(self) -> None:
        member = self.random.choice(self.members)
        if member.asks:
            member.ended.append(member.asks.pop())

    async def decide(self) -> None:
        member = self.random.choice(self.members)
        epoch, limit = member.known.epoch, member.known.limit or member.bounds.start
        if self.random.random() < 0.5:
            change = Change(epoch, 1, "refused", refused=True, lesson='{"pacer": {}}')
        else:
            change = Change(epoch, min(limit + 1, 4), "recovered")
        await self.say(member, change=change, refusals=int(change.refused))

    async def pause(self) -> None:
        member = self.random.choice(self.members)
        await self.say(member, pause_s=self.random.choice((0.005, 0.03, 0.05)))

    async def doubled(self) -> None:
        """The same message arrives twice; the second answer is the one that is heard."""
        member = self.random.choice(self.members)
        said = self.message(member)
        await self.both(said)
        self.hear(member, said, await self.both(said))

    async def reply_lost(self) -> None:
        """It arrives, and the answer does not: the worker will say it all again."""
        await self.both(self.message(self.random.choice(self.members)))

    async def request_lost(self) -> None:
        """It does not even arrive."""
        self.message(self.random.choice(self.members))

    async def crash(self) -> None:
        """A worker is killed, with what it had in flight; another one starts in its place."""
        self.members.remove(self.random.choice(self.members))
        self.members.append(self._member())

    async def restart(self) -> None:
        """Redis has lost its memory."""
        await self.client.delete(*keys_of(self.host))
        self.memory._hosts.clear()
        self.epoch = 0
        self.leases = 0

    async def sleep(self) -> None:
        await asyncio.sleep(self.random.choice(SLEEPS_S))

    async def finish(self) -> None:
        """Whoever asks is granted in the end; then nothing is left but what is to expire."""
        for _ in range(200):
            for member in self.members:
                member.ended += member.held
                member.held.clear()
                await self.say(member)
            if not any(member.asks or member.held for member in self.members):
                break
            await asyncio.sleep(0.01)
        assert not any(member.asks or member.held for member in self.members), "never granted"
        while any(member.ended for member in self.members):
            for member in self.members:
                await self.say(member)
        crashed = await self.client.zrange(keys_of(self.host)[1], 0, -1)
        alive = {member.name for member in self.members}
        assert not [id_ for id_ in crashed if id_.decode().partition(":")[0] in alive]

    # -- both fleets ----------------------------------------------------------------------------

    def message(self, member: Member, **values: Any) -> Talk:
        return Talk(
            worker=member.name,
            bounds=member.bounds,
            held=tuple(member.held),
            ended=tuple(member.ended),
            asks=tuple(member.asks),
            known=member.known,
            **values,
        )

    async def say(self, member: Member, **values: Any) -> None:
        said = self.message(member, **values)
        self.hear(member, said, await self.both(said))

    def hear(self, member: Member, said: Talk, told: Told) -> None:
        member.known = Known(told.epoch, told.limit, told.reason, told.lesson)
        member.ended = [one for one in member.ended if one not in said.ended]
        for ask, answer in told.answers.items():
            if isinstance(answer, Granted) and ask in member.asks:
                member.asks.remove(ask)
                member.held.append(ask)

    async def both(self, said: Talk) -> Told:
        already = set(self._permits())
        told = await self.redis.talk(self.host, said)
        self.now = told.now_s
        expected = await self.memory.talk(self.host, said)
        same(told, expected)
        self.talks += 1
        limit = min(told.limit, said.bounds.ceiling)
        for ask, answer in told.answers.items():
            if isinstance(answer, Granted) and ask not in already:
                assert answer.in_flight <= limit, "granted beyond the limit"
                assert told.pause_s == 0, "granted in a pause"
        assert told.epoch >= self.epoch, "the epoch fell"
        self.epoch = told.epoch
        granted = sum(isinstance(answer, Granted) for answer in told.answers.values())
        assert 0 <= told.in_flight <= self.leases + granted + told.lost
        self.leases = told.in_flight
        await self.check_keys()
        return told

    def _permits(self) -> list[str]:
        shared = self.memory._hosts.get(self.host)
        return [] if shared is None else list(shared.permits)

    async def check_keys(self) -> None:
        """Every key has an expiry, and what has lapsed by now is not counted."""
        keys = keys_of(self.host)
        pipe = self.client.pipeline(transaction=False)
        for key in keys:
            pipe.pttl(key)
        for left in await pipe.execute():
            # -2: there is no such key.
            assert left == -2 or 0 < left <= 20_100, f"a key has {left} ms to live"


def same(told: Told, expected: Told) -> None:
    """The two answers say the same; times to the precision that Redis keeps."""
    assert abs(told.pause_s - expected.pause_s) < TOLERANCE_S, (told, expected)
    answers = {}
    for ask, answer in told.answers.items():
        other = expected.answers[ask]
        if isinstance(answer, AskAgain) and isinstance(other, AskAgain):
            assert abs(answer.after_s - other.after_s) < TOLERANCE_S, (told, expected)
            answer = other
        answers[ask] = answer
    assert replace(told, pause_s=expected.pause_s, answers=answers) == expected
