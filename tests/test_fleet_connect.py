"""From a URL to a client: every documented way leads to a server, and none shows a secret."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from redis_server import RedisServer, free_port

from scrapy_hostgate.checks import HostGateSettingsError
from scrapy_hostgate.fleet.connect import connect, redacted, refuses
from scrapy_hostgate.fleet.join import open_fleet

SECRET = "hunter2-is-secret"


@pytest.fixture(scope="module")
def socket_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The socket of a server that wants a password."""
    path = tmp_path_factory.mktemp("redis") / "s"
    server = RedisServer("--unixsocket", str(path), "--requirepass", SECRET).start()
    yield path
    server.stop()


async def ping(url: str) -> bool:
    client = connect(url, 2)
    try:
        return bool(await client.ping())
    finally:
        await client.aclose()


def test_a_socket_is_a_server_too(socket_path: Path) -> None:
    """With and without a login in the URL: knocked at, let in, and spoken to."""
    url = f"unix://:{SECRET}@{socket_path}?db=1"
    assert refuses(url, 2) is None
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(lambda: asyncio.run(ping(url))).result()
    assert "uthentication required" in (refuses(f"unix://{socket_path}", 2) or "")


def test_a_socket_that_is_not_there_yet_is_no_reason_to_stay_away(tmp_path: Path) -> None:
    """As with a server: it may come."""
    assert refuses(f"unix://{tmp_path}/none", 0.5) is None


@pytest.mark.parametrize("url", ["redis://127.0.0.1:{port}", "redis+cluster://127.0.0.1:{port}"])
def test_a_server_that_is_not_there_yet_is_no_reason_to_stay_away(url: str) -> None:
    """Nor a cluster's node."""
    assert refuses(url.format(port=free_port()), 0.5) is None


@pytest.mark.parametrize(
    ("reply", "refused"),
    [
        ("-NOAUTH Authentication required.", True),
        ("-WRONGPASS invalid username-password pair", True),
        ("-NOPERM this user has no permissions to run the 'ping' command", True),
        ("-LOADING Redis is loading the dataset in memory", False),
        ("-ERR max number of clients reached", False),
        ("-MISCONF snapshots cannot be written", False),
    ],
)
def test_only_a_closed_door_stops_the_start(reply: str, refused: bool) -> None:
    """Whatever else a server says may be over soon."""

    def answer() -> None:
        connection, _ = listener.accept()
        with connection:
            while connection.recv(1000):
                connection.sendall(f"{reply}\r\n".encode())

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer)
        thread.start()
        said = refuses(f"redis://127.0.0.1:{listener.getsockname()[1]}", 2)
        thread.join()
    assert (said is not None) is refused


def test_sentinels_may_have_addresses_of_version_6() -> None:
    """In brackets, as in every URL, with a port or without one."""
    client = connect("redis+sentinel://[::1]:7000,[::2],name/main", 2)
    nodes = [
        (kwargs["host"], kwargs["port"])
        for node in client.connection_pool.sentinel_manager.sentinels
        for kwargs in [node.connection_pool.connection_kwargs]
    ]
    assert nodes == [("::1", 7000), ("::2", 26379), ("name", 26379)]


def test_sentinels_are_not_knocked_at() -> None:
    """They would say where the master is, not whether it lets us in."""
    assert refuses(f"redis+sentinel://127.0.0.1:{free_port()}/main", 0.5) is None


@pytest.mark.parametrize(
    ("url", "why"),
    [
        (f"redis+sentinel://someone:{SECRET}/main", "the port is not a number"),
        (f"redis+sentinel://:{SECRET}@a:1,b:{SECRET}/main", "the port is not a number"),
        ("redis+sentinel://a:1,:2/main", "a host is missing"),
        ("redis+sentinel://a:1,/main", "a host is missing"),
        ("redis+sentinel://a:1/main/first", "the database is not a number"),
    ],
)
def test_what_is_wrong_with_a_sentinel_url_is_said_without_a_secret(url: str, why: str) -> None:
    """Where a host was forgotten, a password stands in the place of its port."""
    with pytest.raises(HostGateSettingsError, match=why) as caught:
        open_fleet("HOSTGATE_FLEET_URL", url, 0.5)
    assert SECRET not in str(caught.value)


def test_what_cannot_be_read_is_not_shown() -> None:
    """A node without a host may be all password."""
    assert redacted(f"redis+sentinel://a:1,:{SECRET}/main") == "an unreadable URL"
