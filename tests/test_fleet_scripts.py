"""Which keys a script touches: all of a host in one slot of a cluster, and no others."""

from __future__ import annotations

import binascii
import dataclasses
import re
from importlib.resources import files

import pytest

from scrapy_hostgate.fleet.protocol import Bounds, Talk
from scrapy_hostgate.fleet.redisfleet import keys_of

HOSTS = ["a.test", "b.test", "::1", "x{y}.test", "}{.test", "a" * 250, ""]
SCRIPTS = ["state", "settle", "admit", "talk", "hosts"]
KEY_NAMES = {"STATE", "PERMITS", "QUEUE", "ALIVE", "WORKERS", "key", "prefix", *"12345"}


def slot_of(key: str) -> int:
    """The slot of a key, as Redis's cluster specification computes it."""
    begin = key.find("{")
    end = key.find("}", begin + 1)
    hashed = key[begin + 1 : end] if begin >= 0 and end > begin + 1 else key
    return binascii.crc_hqx(hashed.encode(), 0) % 16384


def test_slots_are_computed_as_redis_does() -> None:
    """HG-43: the check value of the specification."""
    assert slot_of("123456789") == 12739
    assert slot_of("hg:{a.test}:leases") == slot_of("hg:{a.test}:limit")


@pytest.mark.parametrize("host", HOSTS)
def test_all_keys_of_a_host_share_one_slot(host: str) -> None:
    """HG-43: whatever its name is made of."""
    assert len({slot_of(key) for key in keys_of(host)}) == 1


def test_hosts_are_spread_and_share_no_key() -> None:
    """HG-43: over many slots, and braces make no two hosts the same."""
    names = [*HOSTS, *(f"h{number}.test" for number in range(50))]
    assert len({key for name in names for key in keys_of(name)}) == 5 * len(names)
    assert len({slot_of(keys_of(name)[0]) for name in names}) >= 10


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_touches_only_the_keys_it_is_given(script: str) -> None:
    """HG-42, HG-43: no key name is put together in Lua, and the only clock is Redis's own."""
    source = files("scrapy_hostgate.fleet").joinpath(f"{script}.lua").read_text(encoding="utf-8")
    calls = re.findall(r"redis\.call\('(\w+)'(?:,\s*(?:KEYS\[)?(\w+)\]?)?", source)
    assert calls or script == "talk"
    for command, key in calls:
        if command == "TIME":
            assert not key
        else:
            assert key in KEY_NAMES, (command, key)
    assert "os.time" not in source


def test_nothing_that_is_said_is_a_time_of_the_workers_clock() -> None:
    """HG-42: durations only, so it does not matter how far the clocks are apart."""
    for said in (Talk, Bounds):
        names = [field.name for field in dataclasses.fields(said)]
        assert not [name for name in names if name.endswith(("_at", "until"))]
        assert all(
            name.endswith("_s") for name in names if name.startswith(("pause", "lease", "ttl"))
        )
