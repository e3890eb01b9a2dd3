"""The hosts of ``peers.py``: what each of them does to whoever comes, and what is asked of it."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

LATENCY_S = 0.1


@dataclass(frozen=True)
class Host:
    """``behaviour`` is what :mod:`demo.origin_config` understands."""

    behaviour: Mapping[str, Any]
    pages: int
    healthy: bool = True


@dataclass(frozen=True)
class Scenario:
    """Hosts by address, and how many requests a client may have in flight over all of them."""

    name: str
    what: str
    hosts: Mapping[str, Host] = field(default_factory=dict)
    in_all: int = 16

    @property
    def asked(self) -> int:
        return sum(host.pages for host in self.hosts.values())

    def paths(self, address: str) -> list[str]:
        return [f"/{number}" for number in range(self.hosts[address].pages)]

    def urls(self, port: int) -> list[str]:
        """Every page, in one mixed order that is the same for all clients."""
        urls = [
            f"http://{address}:{port}{path}"
            for address in self.hosts
            for path in self.paths(address)
        ]
        random.Random(0).shuffle(urls)
        return urls

    def origin_config(self) -> dict[str, Any]:
        """A process that plays the hosts, on the loopback interface only."""
        return {
            # 127.0.0.1 is where the record is asked for.
            "listen": ["127.0.0.1", *self.hosts],
            "hosts": {address: dict(host.behaviour) for address, host in self.hosts.items()},
        }

    def healthy_only(self) -> Scenario:
        """The same without sick hosts, and without the one request that each tarpit may hold."""
        hosts = {address: host for address, host in self.hosts.items() if host.healthy}
        tarpits = sum(host.behaviour["behaviour"] == "tarpit" for host in self.hosts.values())
        in_all = self.in_all - tarpits
        return Scenario(f"{self.name}, {in_all} in all", "healthy hosts only", hosts, in_all)


def scenarios(*, quick: bool) -> dict[str, Scenario]:
    """All of them, by name. ``quick`` is for a look, not for figures: fewer pages, less trouble."""
    pages, spell_s = (24, 6) if quick else (60, 20)
    single = {
        "steady": ("0.1 s, always", {"behaviour": "steady", "latency": LATENCY_S}),
        "refuses above 3": (
            "429 to the 4th at a time",
            {"behaviour": "refuse_above", "n": 3, "latency": LATENCY_S},
        ),
        "outage": (
            f"503 for {spell_s} s",
            _in_stride(pages, {"behaviour": "outage", "status": 503, **_spell(spell_s)}),
        ),
        "Retry-After": (
            f"429 for {spell_s} s, and says for how long",
            _in_stride(
                pages,
                {
                    "behaviour": "outage",
                    "status": 429,
                    "retry_after": "remaining",
                    **_spell(spell_s),
                },
            ),
        ),
        "degradation": (
            f"2 s instead of 0.1 s for {spell_s} s",
            _in_stride(pages, {"behaviour": "degrade", "slow_latency": 2.0, **_spell(spell_s)}),
        ),
    }
    all_of_them = {
        name: Scenario(name, what, {"127.0.0.2": Host(behaviour, pages)})
        for name, (what, behaviour) in single.items()
    }
    all_of_them["broad"] = _broad(quick)
    return all_of_them


def _spell(length_s: float) -> dict[str, float]:
    return {"start": 0, "length": length_s, "latency": LATENCY_S}


def _in_stride(pages: int, trouble: Mapping[str, Any]) -> dict[str, Any]:
    """Trouble that begins when a client has found its pace."""
    return {"behaviour": "after", "number": pages // 2, "latency": LATENCY_S, "then": trouble}


def _broad(quick: bool) -> Scenario:
    fast, fast_pages, sick = (20, 5, 3) if quick else (60, 10, 10)
    tarpit_s, tarpit_pages = (3, 2) if quick else (6, 3)
    refuses_s, retry_after_s = (6, 3) if quick else (20, 10)
    refusing = {
        "behaviour": "outage",
        "start": 0,
        "length": refuses_s,
        "latency": 0.05,
        "status": 429,
        "retry_after": str(retry_after_s),
    }
    kinds = [
        (fast, Host({"behaviour": "steady", "latency": 0.05}, fast_pages)),
        (sick, Host({"behaviour": "tarpit", "latency": tarpit_s}, tarpit_pages, healthy=False)),
        (sick, Host(refusing, fast_pages, healthy=False)),
    ]
    hosts = [host for count, host in kinds for _ in range(count)]
    return Scenario(
        "broad",
        f"{fast} hosts of 0.05 s, {sick} tarpits of {tarpit_s} s, {sick} that refuse for "
        f"{refuses_s} s; 16 in all",
        {f"127.0.1.{number}": host for number, host in enumerate(hosts, 1)},
    )
