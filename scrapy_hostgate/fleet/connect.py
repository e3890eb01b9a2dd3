"""From HOSTGATE_FLEET_URL to a Redis client, without a password ever being shown."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

import redis
import redis.asyncio
from redis.asyncio.cluster import RedisCluster
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    NoPermissionError,
    RedisError,
)
from redis.retry import Retry

SCHEMES = {
    "redis": "one server",
    "rediss": "one server, with TLS",
    "unix": "one server, through a socket",
    "redis+sentinel": "HOST:PORT,HOST:PORT/SERVICE/DB, the master that sentinels name",
    "rediss+sentinel": "the same with TLS",
    "redis+cluster": "a cluster, by one of its nodes",
    "rediss+cluster": "the same with TLS",
}
# Connections, not requests: an exchange takes one for a millisecond or so.
MAX_CONNECTIONS = 32
SENTINEL_PORT = 26379
# No word of the library at each connect: a round trip less before the first exchange, and not every
# ACL allows it.
_NAMELESS: dict[str, Any] = (
    {"driver_info": None}
    if hasattr(redis, "driver_info")
    else {"lib_name": None, "lib_version": None}
)


_NODE = re.compile(r"(\[[^\]]*\]|[^:\[\]]+)(:\d*)?")


def redacted(url: str) -> str:
    """Where the server is: no user, no password, no query."""
    scheme, _, rest = url.partition("://")
    # By the last @, whatever a URL's grammar says: a password may hold a / that nobody encoded.
    where = re.split("[?#]", rest.rpartition("@")[2])[0]
    nodes, slash, path = where.partition("/")
    if nodes and not all(_NODE.fullmatch(node) for node in nodes.split(",")):
        # Without a host what stands there may be a password.
        return "an unreadable URL"
    return f"{scheme}://{nodes}{slash}{path}"


def connect(url: str, timeout_s: float) -> Any:
    """An asyncio client; nothing is sent yet. Raises ``ValueError`` for a URL that cannot be one.

    Calls are not tried again by the client: whoever calls knows what a failure means.
    """
    parts = _parts(url)
    options: dict[str, Any] = {
        # Every server speaks it; the newer one makes redis-py ask for things that few servers have.
        "protocol": 2,
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "health_check_interval": 0,
        **_NAMELESS,
    }
    kind = parts.scheme.partition("+")[2]
    if kind == "sentinel":
        return _by_sentinel(parts, options)
    if kind == "cluster":
        return RedisCluster.from_url(_plain(url), retry=Retry(NoBackoff(), 0), **options)
    pool = redis.asyncio.BlockingConnectionPool.from_url(
        url,
        max_connections=MAX_CONNECTIONS,
        timeout=timeout_s,
        retry=Retry(NoBackoff(), 0),
        **options,
    )
    return redis.asyncio.Redis.from_pool(pool)


def refuses(url: str, timeout_s: float) -> str | None:
    """Knock once, at start-up: why the server will never let us in, or ``None``.

    A server that is not there is no reason: it may come back. Blocks for ``timeout_s`` at most.
    """
    if _parts(url).scheme.endswith("sentinel"):
        return None
    client = redis.Redis.from_url(
        _plain(url),
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
    )
    try:
        client.ping()
    except (AuthenticationError, AuthorizationError, NoPermissionError) as error:
        return str(error)
    except (RedisError, OSError):
        return None
    finally:
        client.close()
    return None


def _parts(url: str) -> SplitResult:
    parts = urlsplit(url)
    if "@" in parts.path + parts.query + parts.fragment:
        raise ValueError("a / ? # or @ in a user name or password must be percent-encoded")
    if parts.scheme not in SCHEMES:
        raise ValueError(f"the scheme must be one of {', '.join(SCHEMES)}")
    if not parts.netloc and parts.scheme != "unix":
        raise ValueError("a host is missing")
    if not parts.scheme.endswith("sentinel"):
        _port(parts)
    return parts


def _plain(url: str) -> str:
    """The URL as redis-py knows it: without what we add to the scheme, and else as it is."""
    scheme, _, rest = url.partition("://")
    return f"{scheme.partition('+')[0]}://{rest}"


def _port(parts: SplitResult) -> int | None:
    try:
        return parts.port
    except ValueError:
        # Python's own words show what stands in its place: of a typing error, a password.
        raise ValueError("the port is not a number") from None


def _by_sentinel(parts: SplitResult, options: dict[str, Any]) -> Any:
    login, _, hosts = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    nodes = [_node(host) for host in hosts.split(",")]
    service, _, db = parts.path.strip("/").partition("/")
    if not service:
        raise ValueError("a sentinel URL must name the service: redis+sentinel://HOST:PORT/SERVICE")
    if db and not db.isdecimal():
        raise ValueError("the database is not a number")
    sentinel = Sentinel(nodes, **options)  # type: ignore[no-untyped-call]
    return sentinel.master_for(
        service,
        db=int(db or 0),
        username=unquote(user) or None,
        password=unquote(password) or None,
        ssl=parts.scheme.startswith("rediss"),
        **options,
    )


def _node(text: str) -> tuple[str, int]:
    node = urlsplit(f"//{text}")
    if not node.hostname:
        raise ValueError("a host is missing")
    port = _port(node)
    return node.hostname, SENTINEL_PORT if port is None else port
