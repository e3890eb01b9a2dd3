"""The fleet through Redis or Valkey: what is shared lives there, and every exchange is one script.

Decisions are made by Redis alone, on its own clock, in the scripts beside this file. All keys of a
host share one hash slot, so the same script runs on a cluster. A script's keys are all in its KEYS.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from redis.asyncio.cluster import RedisCluster
from redis.exceptions import NoScriptError, RedisError

from scrapy_hostgate.fleet.connect import connect, redacted
from scrapy_hostgate.fleet.protocol import (
    AskAgain,
    FleetError,
    Granted,
    HostRow,
    Talk,
    Told,
    Wake,
    Why,
)

if TYPE_CHECKING:
    from redis.asyncio import Redis

KEYS = ("state", "permits", "queue", "alive", "workers")
WAKE_PREFIX = "hostgate:wake:"
MAX_KEY_CHARS = 255
_SAFE = ".:-_"


def keys_of(host: str) -> list[str]:
    """The Redis keys of a host, all in one hash slot whatever its name is made of."""
    tag = quote(host, safe=_SAFE) or "%"
    if len(tag) > MAX_KEY_CHARS:
        digest = hashlib.sha256(host.encode("utf-8", "surrogatepass")).hexdigest()
        tag = f"{tag[:64]}%{digest}"
    return [f"hostgate:{{{tag}}}:{name}" for name in KEYS]


class Script:
    """A Lua script made of files of this folder; sent whole only to a server that lacks it."""

    def __init__(self, *names: str) -> None:
        folder = files("scrapy_hostgate.fleet")
        self.source = "\n".join(
            folder.joinpath(f"{name}.lua").read_text(encoding="utf-8") for name in names
        )
        self._sha = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()

    async def run(self, client: Redis, keys: list[str], *arguments: str) -> Any:
        try:
            return await client.evalsha(self._sha, len(keys), *keys, *arguments)
        except NoScriptError:
            return await client.eval(self.source, len(keys), *keys, *arguments)


class RedisFleet:
    """Shares the state of hosts among all processes that use one Redis.

    ``url`` is one of :func:`scrapy_hostgate.fleet.connect.connect`.
    """

    def __init__(self, url: str, timeout_s: float = 2.0) -> None:
        self._where = redacted(url)
        self._client = connect(url, timeout_s)
        self._talk = Script("state", "settle", "admit", "talk")
        self._look = Script("hosts")

    def __repr__(self) -> str:
        return f"<RedisFleet {self._where}>"

    async def talk(self, host: str, said: Talk) -> Told:
        message = json.dumps(_as_plain(host, said))
        try:
            reply = await self._talk.run(self._client, keys_of(host), message, WAKE_PREFIX)
            return _told(said, json.loads(reply))
        # A reply of another shape than ours is a server that is not to be relied on either.
        except (RedisError, OSError, ValueError, TypeError, KeyError) as error:
            raise self._failed(error) from None

    async def ping(self) -> None:
        try:
            await self._client.ping()
        except (RedisError, OSError) as error:
            raise self._failed(error) from None

    async def hosts(self) -> list[HostRow]:
        rows = []
        try:
            async for key in self._client.scan_iter(match="hostgate:{*}:state", count=1000):
                name = key.decode() if isinstance(key, bytes) else key
                tag = name.removeprefix("hostgate:{").removesuffix("}:state")
                keys = [f"hostgate:{{{tag}}}:{part}" for part in KEYS]
                told = json.loads(await self._look.run(self._client, keys))
                if told.get("host") is not None:
                    rows.append(_row(told))
        except (RedisError, OSError, ValueError, TypeError, KeyError) as error:
            raise self._failed(error) from None
        return sorted(rows, key=lambda row: row.host)

    async def listen(self, worker: str, wake: Wake) -> None:
        try:
            if isinstance(self._client, RedisCluster):
                # Its pubsub has to know the nodes.
                await self._client.initialize()
            pubsub = self._client.pubsub()
        except (RedisError, OSError) as error:
            raise self._failed(error) from None
        try:
            await pubsub.subscribe(WAKE_PREFIX + worker)
            async for message in pubsub.listen():
                if message["type"] == "message":
                    data = message["data"]
                    text = data.decode() if isinstance(data, bytes) else data
                    after_ms, _, host = text.partition(" ")
                    wake(host, float(after_ms) / 1000)
        except (RedisError, OSError, ValueError) as error:
            raise self._failed(error) from None
        finally:
            await _quietly(pubsub.aclose())

    async def close(self) -> None:
        await _quietly(self._client.aclose())

    def _failed(self, error: Exception) -> FleetError:
        # Only the kind of error and the server's own words: those hold no password.
        words = str(error).splitlines()[0][:200] if str(error) else ""
        return FleetError(f"{self._where}: {type(error).__name__} {words}".rstrip())


async def _quietly(closing: Any) -> None:
    """Close a connection that may be broken already."""
    with contextlib.suppress(RedisError, OSError, asyncio.TimeoutError, RuntimeError):
        await asyncio.wait_for(closing, 1)


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)


def _as_plain(host: str, said: Talk) -> dict[str, object]:
    """A Talk as the scripts read it: times are milliseconds."""
    bounds, change = said.bounds, said.change
    plain: dict[str, object] = {
        "host": host,
        "worker": said.worker,
        "bounds": {
            "start": bounds.start,
            "ceiling": bounds.ceiling,
            "spacing": _ms(bounds.spacing_s),
            "rate": _ms(bounds.rate_s),
            "burst": bounds.burst,
            "lease": _ms(bounds.lease_s),
            "ttl": _ms(bounds.ttl_s),
            "wait": _ms(bounds.wait_s),
        },
        "held": said.held,
        "ended": said.ended,
        "asks": said.asks,
        "pause": _ms(said.pause_s),
        "refusals": said.refusals,
        "known": {
            "epoch": said.known.epoch,
            "limit": said.known.limit,
            "reason": said.known.reason,
            "lesson": said.known.lesson,
        },
    }
    if change is not None:
        plain["change"] = {
            "epoch": change.epoch,
            "limit": change.limit,
            "reason": change.reason,
            "refused": change.refused,
            "lesson": change.lesson,
        }
    return plain


def _told(said: Talk, reply: dict[str, Any]) -> Told:
    # An empty Lua table is an object in JSON, not a list.
    answers = reply["answers"] or []
    return Told(
        now_s=reply["now"] / 1000,
        epoch=int(reply["epoch"]),
        limit=max(1, int(reply["limit"])),
        reason=str(reply["reason"]),
        lesson=str(reply["lesson"]),
        pause_s=reply["pause"] / 1000,
        in_flight=int(reply["in_flight"]),
        workers=int(reply["workers"]),
        incidents=int(reply["incidents"]),
        changed=bool(reply["changed"]),
        lost=int(reply["lost"]),
        answers={
            ask: AskAgain(answer["after"] / 1000, Why(answer["why"]))
            if "why" in answer
            else Granted(int(answer["in_flight"]))
            for ask, answer in zip(said.asks, answers, strict=True)
        },
    )


def _row(told: dict[str, Any]) -> HostRow:
    return HostRow(
        host=told["host"],
        limit=int(told["limit"]),
        start=int(told["start"]),
        ceiling=int(told["ceiling"]),
        in_flight=int(told["in_flight"]),
        waiting=int(told["waiting"]),
        workers=int(told["workers"]),
        pause_s=told["pause"] / 1000,
        refusals=int(told["refusals"]),
        incidents=int(told["incidents"]),
        reason=told["reason"],
    )
