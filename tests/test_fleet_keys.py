"""The fleet's keys (HG-43): one hash slot per host, whatever a host's name is made of."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis_server import RedisServer

import scrapy_hostgate.fleet
from scrapy_hostgate.fleet.connect import connect, redacted
from scrapy_hostgate.fleet.protocol import Bounds, FleetError, Granted, Talk
from scrapy_hostgate.fleet.redisfleet import KEYS, RedisFleet, keys_of

FOLDER = Path(scrapy_hostgate.fleet.__file__).parent
HOSTS = ["a.test", "b.test", "::1", "x{y}.test", "}{.test", "a" * 250 + ".test", "", "ü.test", "\n"]


def crc16(data: bytes) -> int:
    """CRC16-XMODEM, by which a cluster chooses the slot."""
    crc = 0
    for byte in data:
        crc ^= byte << 8
        for _ in range(8):
            crc = (crc << 1 ^ 0x1021 if crc & 0x8000 else crc << 1) & 0xFFFF
    return crc


def hash_slot(key: str) -> int:
    """The slot of a key by the rule of the Redis Cluster specification."""
    start = key.find("{")
    if start >= 0:
        end = key.find("}", start + 1)
        if end > start + 1:
            key = key[start + 1 : end]
    return crc16(key.encode()) % 16384


def test_the_rule_is_the_clusters() -> None:
    """HG-43: the check value of the specification, and two untagged keys that differ."""
    assert hash_slot("123456789") == 12739
    assert hash_slot("hg:a.test:leases") == 5285
    assert hash_slot("hg:a.test:limit") == 8767


@pytest.mark.parametrize("host", HOSTS, ids=repr)
def test_all_keys_of_a_host_share_a_slot(host: str) -> None:
    """HG-43: also with braces, without a name, or of one that is no text for a terminal."""
    keys = keys_of(host)
    assert len(keys) == len(set(keys)) == len(KEYS)
    assert len({hash_slot(key) for key in keys}) == 1
    assert all(key.isascii() and key.isprintable() and len(key) < 300 for key in keys)


@given(st.text(max_size=400), st.text(max_size=400))
def test_two_hosts_never_share_a_key(one: str, other: str) -> None:
    """HG-43: not even if a user's own function makes the names."""
    if one != other:
        assert not set(keys_of(one)) & set(keys_of(other))


def test_hosts_spread_over_the_slots() -> None:
    """HG-43: fifty hosts are on at least ten, so that a cluster has something to share out."""
    assert len({hash_slot(keys_of(f"host{number}.test")[0]) for number in range(50)}) >= 10


def test_scripts_touch_no_key_but_those_they_are_given() -> None:
    """HG-43: the first argument of every command that takes a key is one of KEYS, by name."""
    calls = re.findall(
        r"redis\.call\(\s*'(\w+)'\s*,?\s*([^,)]*)",
        "\n".join(file.read_text(encoding="utf-8") for file in sorted(FOLDER.glob("*.lua"))),
    )
    assert len(calls) > 20
    given_keys = {"STATE", "PERMITS", "QUEUE", "ALIVE", "WORKERS", "key"}
    given_keys |= {f"KEYS[{number}]" for number in range(1, 6)}
    for command, first in calls:
        if command not in ("TIME", "PUBLISH"):
            assert first.strip() in given_keys, (command, first)


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisServer]:
    """A cluster of one node that has all slots: CROSSSLOT and redirections are real."""
    server = RedisServer("--cluster-enabled", "yes").start()
    slots = [str(slot) for slot in range(16384)]
    server.command("CLUSTER", "ADDSLOTS", *slots)
    while "cluster_state:ok" not in str(server.command("CLUSTER", "INFO")):
        pass
    yield server
    server.stop()


def test_a_real_cluster_takes_the_scripts(cluster: RedisServer) -> None:
    """HG-43: by a cluster's client and a plain one: grants, wake-ups and the list of hosts."""

    async def work(url: str) -> None:
        fleet = RedisFleet(url)
        woken = asyncio.Event()
        listener = asyncio.ensure_future(fleet.listen("b", lambda host, after_s: woken.set()))
        await asyncio.sleep(0.3)
        try:
            for host in HOSTS:
                told = await fleet.talk(host, Talk("a", Bounds(start=1), asks=("a:1",)))
                assert told.answers == {"a:1": Granted(1)}
            await fleet.talk("a.test", Talk("b", Bounds(start=1), asks=("b:1",)))
            await fleet.talk("a.test", Talk("a", Bounds(start=1), ended=("a:1",)))
            await asyncio.wait_for(woken.wait(), 5)
            assert {row.host for row in await fleet.hosts()} == set(HOSTS)
        finally:
            listener.cancel()
            await asyncio.gather(listener, return_exceptions=True)
            await fleet.close()

    with ThreadPoolExecutor(1) as thread:
        for url in (cluster.url, cluster.url.replace("redis://", "redis+cluster://")):
            cluster.command("FLUSHALL")
            thread.submit(lambda url=url: asyncio.run(work(url))).result()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://user:secret@h:6379/0?password=secret", "redis://h:6379/0"),
        ("redis+sentinel://:secret@a:1,b:2/main/0", "redis+sentinel://a:1,b:2/main/0"),
        ("unix://secret@/run/redis.sock", "unix:///run/redis.sock"),
        ("redis://[::1", "an unreadable URL"),
    ],
)
def test_where_the_server_is_says_no_secret(url: str, shown: str) -> None:
    """No user, no password, no query."""
    assert redacted(url) == shown


@pytest.mark.parametrize("tls", ["redis", "rediss"])
def test_a_sentinel_url_is_understood(tls: str) -> None:
    """Sentinels, service, database, user and password go where redis-py takes them."""
    client = connect(f"{tls}+sentinel://me:pass%40word@10.0.0.1:26379,10.0.0.2/main/3", 2)
    pool = client.connection_pool
    assert pool.service_name == "main"
    assert pool.connection_kwargs["db"] == 3
    assert (pool.connection_kwargs["username"], pool.connection_kwargs["password"]) == (
        "me",
        "pass@word",
    )
    nodes = [
        (
            node.connection_pool.connection_kwargs["host"],
            node.connection_pool.connection_kwargs["port"],
        )
        for node in pool.sentinel_manager.sentinels
    ]
    assert nodes == [("10.0.0.1", 26379), ("10.0.0.2", 26379)]


def test_nothing_that_is_said_is_a_time_of_the_workers_clock() -> None:
    """HG-42: durations only, so it does not matter how far the clocks are apart."""
    for said in (Talk, Bounds):
        names = [field.name for field in dataclasses.fields(said)]
        assert not [name for name in names if name.endswith(("_at", "until"))]
        assert all(
            name.endswith("_s") for name in names if name.startswith(("pause", "lease", "ttl"))
        )


@pytest.mark.parametrize("data", [b"1500 a.example", "1500 a.example"])
def test_a_wake_up_says_where_and_when_in_bytes_or_text(data: Any) -> None:
    """A client may have been told to decode; confirmations of the subscription are no wake-ups."""

    class PubSub:
        closed = False

        async def subscribe(self, channel: str) -> None:
            assert channel == "hostgate:wake:w"

        async def listen(self) -> AsyncIterator[dict[str, Any]]:
            yield {"type": "subscribe", "data": 1}
            yield {"type": "message", "data": data}
            raise ConnectionError("gone")

        async def aclose(self) -> None:
            self.closed = True

    fleet = RedisFleet("redis://127.0.0.1:1")
    pubsub = PubSub()
    fleet._client = SimpleNamespace(pubsub=lambda: pubsub)
    woken: list[tuple[str, float]] = []

    async def listen() -> None:
        await fleet.listen("w", lambda host, after_s: woken.append((host, after_s)))

    with (
        ThreadPoolExecutor(1) as thread,
        pytest.raises(FleetError, match=r"^redis://127.0.0.1:1: ConnectionError gone$"),
    ):
        thread.submit(lambda: asyncio.run(listen())).result()
    assert woken == [("a.example", 1.5)]
    assert pubsub.closed
