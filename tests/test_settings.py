"""Settings: read once, checked whole, and every mistake said in one clear sentence."""

from __future__ import annotations

import math
from typing import Any

import pytest
from scrapy import Request, Spider
from scrapy.settings import Settings

from scrapy_hostgate import HostGateSettingsError
from scrapy_hostgate.controller import Law
from scrapy_hostgate.pacer import Pace
from scrapy_hostgate.settings import DEFAULTS, HostGateSettings


def read(spider: object = None, **values: Any) -> HostGateSettings:
    """The settings of a project that sets ``values``."""
    return HostGateSettings.from_settings(Settings(values), spider)


def error_of(**values: Any) -> str:
    with pytest.raises(HostGateSettingsError) as caught:
        read(**values)
    return str(caught.value)


def error_of_host(options: Any, host: str = "a.example", **values: Any) -> str:
    return error_of(HOSTGATE_HOSTS={host: options}, **values)


def key_of_request(request: Request) -> str:
    return "k"


def is_refusal(response: object) -> bool:
    return False


# -- defaults and texts -------------------------------------------------------------------------


def test_nothing_set_is_two_and_four() -> None:
    """The defaults of the documentation."""
    settings = read()
    assert settings == HostGateSettings(jitter=settings.jitter)
    assert settings.law_for("any.example") == Law(
        start=2, ceiling=4, latency_noise_s=0.05, slow_latency_s=5.0, recovery_delay_s=30.0
    )
    assert settings.pace_for("any.example") == Pace(
        rate=None, burst=1, delay_s=0.0, jitter=0.5, max_pause_s=900.0
    )
    assert settings.refusal_codes == {429, 503}


def test_the_documented_defaults_are_those_of_the_dataclass() -> None:
    """One truth: what is read when nothing is set is what is written in ``DEFAULTS``."""
    settings = read()
    for name, default in DEFAULTS.items():
        field = name.removeprefix("HOSTGATE_").lower()
        owner: object = settings.observing if hasattr(settings.observing, field) else settings
        if field == "fleet_fail":
            assert (default, settings.fleet.stays_closed) == ("alone", False)
            continue
        if field.startswith("fleet_"):
            field, owner = field.removeprefix("fleet_"), settings.fleet
        value = getattr(owner, field, None)
        if value is None and default is not None:
            value = getattr(owner, field + "_s")
        assert value == (frozenset(default) if isinstance(default, list) else default), name


def test_texts_are_read_as_from_the_command_line() -> None:
    """HG-36: ``-s NAME=VALUE`` hands over texts; each means what it says."""
    settings = read(
        HOSTGATE_ENABLED="0",
        HOSTGATE_CONCURRENCY="1",
        HOSTGATE_MAX_CONCURRENCY=" 3 ",
        HOSTGATE_REFUSAL_CODES="429, 503,403",
        HOSTGATE_REFUSAL_RETRIES="0",
        HOSTGATE_MAX_PAUSE="60",
        HOSTGATE_RECOVERY_DELAY="2.5",
        HOSTGATE_LATENCY_NOISE="0",
        HOSTGATE_HOSTS='{"slow.example": {"rate": "0.5", "concurrency": "1"}}',
    )
    assert settings.enabled is False
    assert settings.refusal_codes == {403, 429, 503}
    assert settings.refusal_retries == 0
    assert settings.law_for("any.example") == Law(
        start=1, ceiling=3, latency_noise_s=0.0, slow_latency_s=5.0, recovery_delay_s=2.5
    )
    pace = settings.pace_for("slow.example")
    assert (pace.rate, pace.rate_interval_s, pace.max_pause_s) == (0.5, 2.0, 60.0)


@pytest.mark.parametrize(
    ("value", "enabled"),
    [(True, True), (1, True), ("True", True), (False, False), ("0", False), ("false", False)],
)
def test_enabled_is_a_flag(value: object, enabled: bool) -> None:
    """As Scrapy's own flags are written."""
    assert read(HOSTGATE_ENABLED=value).enabled is enabled


def test_none_is_not_set() -> None:
    """As everywhere in Scrapy: ``None`` leaves the default."""
    assert read(**dict.fromkeys(DEFAULTS)) == read()


def test_the_settings_are_frozen() -> None:
    """Read once: nobody changes them in the middle of a crawl."""
    with pytest.raises(AttributeError):
        read().concurrency = 9  # type: ignore[misc]


# -- mistakes -----------------------------------------------------------------------------------


def test_an_unknown_name_is_named_with_what_was_meant() -> None:
    """A misspelt setting would otherwise be a default that nobody wanted."""
    assert error_of(HOSTGATE_CONCURENCY=1) == (
        "HOSTGATE_CONCURENCY is not a setting of scrapy_hostgate (did you mean "
        f"HOSTGATE_CONCURRENCY?). There are: {', '.join(DEFAULTS)}."
    )


@pytest.mark.parametrize(("value", "item"), [([True], "True"), ("429,many", "'many'")])
def test_a_refusal_code_that_is_none_is_named(value: object, item: str) -> None:
    """The item is named, not only the list."""
    assert error_of(HOSTGATE_REFUSAL_CODES=value).startswith(
        f"HOSTGATE_REFUSAL_CODES, item {item}, is {item}, but must be a whole number"
    )


@pytest.mark.parametrize("value", ["403,429", "[403, 429]", [403, "429"]])
def test_refusal_codes_may_be_text(value: object) -> None:
    """As a list, and as ``-s`` hands it over, with brackets or without."""
    assert read(HOSTGATE_REFUSAL_CODES=value).refusal_codes == {403, 429}


WHOLE = [0, -1, 1.5, True, False, math.nan, math.inf, "two", "", "1.5", [2]]


@pytest.mark.parametrize("value", WHOLE, ids=repr)
@pytest.mark.parametrize(
    "name", ["HOSTGATE_CONCURRENCY", "HOSTGATE_MAX_CONCURRENCY", "HOSTGATE_MAX_HOSTS"]
)
def test_what_is_no_whole_number_above_zero(name: str, value: object) -> None:
    """Named with its value and what is allowed."""
    assert error_of(**{name: value}) == (
        f"{name} is {value!r}, but must be a whole number, 1 or more."
    )


@pytest.mark.parametrize("value", [-1, 0.5, True, math.nan, "few"], ids=repr)
@pytest.mark.parametrize("name", ["HOSTGATE_REFUSAL_RETRIES", "HOSTGATE_STATS_HOSTS"])
def test_what_is_no_whole_number(name: str, value: object) -> None:
    """These may be 0."""
    assert getattr(read(**{name: 0}), name.removeprefix("HOSTGATE_").lower()) == 0
    assert error_of(**{name: value}) == (
        f"{name} is {value!r}, but must be a whole number, 0 or more."
    )


@pytest.mark.parametrize("value", [0, -1, True, math.nan, math.inf, "long", [1]], ids=repr)
@pytest.mark.parametrize(
    "name",
    [
        "HOSTGATE_STALL_TIMEOUT",
        "HOSTGATE_MAX_PAUSE",
        "HOSTGATE_RECOVERY_DELAY",
        "HOSTGATE_SLOW_LATENCY",
    ],
)
def test_what_is_no_number_of_seconds(name: str, value: object) -> None:
    """Zero is none either."""
    assert error_of(**{name: value}) == (
        f"{name} is {value!r}, but must be a number of seconds above 0."
    )


@pytest.mark.parametrize("value", [-0.1, True, math.nan, "x"], ids=repr)
def test_the_noise_may_be_zero_but_not_less(value: object) -> None:
    """0 switches that condition off."""
    assert read(HOSTGATE_LATENCY_NOISE=0).latency_noise_s == 0
    assert error_of(HOSTGATE_LATENCY_NOISE=value) == (
        f"HOSTGATE_LATENCY_NOISE is {value!r}, but must be a number of seconds, 0 or more."
    )


def test_a_start_above_the_ceiling_is_refused() -> None:
    """Also when only one of the two is set; a lower ceiling alone takes the start with it."""
    assert error_of(HOSTGATE_CONCURRENCY=4, HOSTGATE_MAX_CONCURRENCY=3) == (
        "HOSTGATE_CONCURRENCY is 4, but must be at most HOSTGATE_MAX_CONCURRENCY (3): "
        "no start above the ceiling. To raise both give HOSTGATE_REASON too."
    )
    assert "HOSTGATE_MAX_CONCURRENCY (4)" in error_of(HOSTGATE_CONCURRENCY=5)
    law = read(HOSTGATE_MAX_CONCURRENCY=1).law_for("any.example")
    assert (law.start, law.ceiling) == (1, 1)


@pytest.mark.parametrize(
    ("values", "name", "number", "most"),
    [
        ({"HOSTGATE_CONCURRENCY": 3}, "HOSTGATE_CONCURRENCY", 3, 2),
        ({"HOSTGATE_MAX_CONCURRENCY": 5}, "HOSTGATE_MAX_CONCURRENCY", 5, 4),
    ],
)
def test_the_projects_own_values_are_not_raised_without_a_reason(
    values: dict[str, Any], name: str, number: int, most: int
) -> None:
    """No reason, or a blank one: no start. With one it is said in the start-up line."""
    expected = (
        f"{name} is {number}, but must be at most {most}, or more with HOSTGATE_REASON set to why "
        "every host can bear it."
    )
    assert error_of(**values) == expected
    assert error_of(**values, HOSTGATE_REASON="  ") == expected
    settings = read(**values, HOSTGATE_REASON="our own test bed")
    assert getattr(settings, name.removeprefix("HOSTGATE_").lower()) == number
    assert "reason: 'our own test bed'" in settings.describe()


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("HOSTGATE_ENABLED", "yes", "True or False"),
        ("HOSTGATE_ENABLED", 2, "True or False"),
        ("HOSTGATE_REASON", 5, "a text"),
        ("HOSTGATE_REFUSAL_CODES", 429, "a list of HTTP status codes from 400 to 599"),
        ("HOSTGATE_REFUSAL_CODES", [200, 429], "a list of HTTP status codes from 400 to 599"),
        ("HOSTGATE_REFUSAL_DETECTOR", 5, "a callable (response), or the import path of one"),
        ("HOSTGATE_REFUSAL_DETECTOR", "no.such.thing", "a callable (response), or the import"),
        ("HOSTGATE_HOSTS", "{broken", "a dict of host to dict"),
        ("HOSTGATE_HOSTS", 5, "a dict of host to dict"),
        ("HOSTGATE_HOSTS", ["a.example"], "a dict of host to dict"),
        ("HOSTGATE_HOSTS", '["a.example"]', "a dict of host to dict"),
        ("HOSTGATE_HOSTS", "[1]", "a dict of host to dict"),
        ("HOSTGATE_EVENTS", 5, "the path of a file, in which %(name)s"),
        ("HOSTGATE_EVENTS", "50%.jsonl", "the path of a file, in which %(name)s"),
        ("HOSTGATE_REPORT", "%(spider)s.html", "the path of a file, in which %(name)s"),
        ("HOSTGATE_PROMETHEUS_PORT", 65_536, "a port from 0 (any free one) to 65535"),
        ("HOSTGATE_PROMETHEUS_HOST", " ", "an address such as 127.0.0.1 or 0.0.0.0"),
        ("HOSTGATE_KEY", "", 'one of "host", "domain", "slot"'),
        ("HOSTGATE_PROMETHEUS_HOST", 5, "an address such as 127.0.0.1 or 0.0.0.0"),
    ],
)
def test_wrong_types_are_named(name: str, value: object, allowed: str) -> None:
    """Setting, value and what is allowed, whatever the type."""
    message = error_of(**{name: value})
    assert message.startswith(f"{name} is ")
    assert f"but must be {allowed}" in message


# -- HOSTGATE_HOSTS -----------------------------------------------------------------------------


def test_the_example_of_the_documentation_holds() -> None:
    """Three entries, three laws, and every other host as the project says."""
    settings = read(
        HOSTGATE_HOSTS={
            "slow.example": {"concurrency": 1, "rate": 0.5},
            "api.example.org": {"concurrency": 4, "max_concurrency": 8, "reason": "allowed"},
            "*.cdn.example": {"max_concurrency": 6, "reason": "agreed by mail 2026-05"},
        }
    )
    laws = {
        host: (law.start, law.ceiling)
        for host in ("slow.example", "api.example.org", "x.cdn.example", "cdn.example", "b.example")
        for law in [settings.law_for(host)]
    }
    assert laws == {
        "slow.example": (1, 4),
        "api.example.org": (4, 8),
        "x.cdn.example": (2, 6),
        "cdn.example": (2, 4),
        "b.example": (2, 4),
    }
    assert settings.pace_for("slow.example").rate == 0.5
    assert settings.pace_for("b.example").rate is None


def test_the_most_specific_pattern_wins() -> None:
    """The host itself, then the longest ``*.``, whatever the order they are written in."""
    settings = read(
        HOSTGATE_HOSTS={
            "*.example": {"rate": 1},
            "*.b.example": {"rate": 2},
            "*.a.b.example": {"rate": 3},
            "x.a.b.example": {"rate": 4},
        }
    )
    rates = {
        "c.example": 1,
        "b.example": 1,
        "a.b.example": 2,
        "y.b.example": 2,
        "y.a.b.example": 3,
        "z.y.a.b.example": 3,
        "x.a.b.example": 4,
        "y.x.a.b.example": 3,
        "example": None,
        "notexample": None,
    }
    assert {host: settings.pace_for(host).rate for host in rates} == rates


def test_entries_do_not_add_up() -> None:
    """One entry holds: a wider one lends it nothing."""
    settings = read(
        HOSTGATE_HOSTS={"*.example": {"rate": 1, "burst": 3}, "a.example": {"concurrency": 1}}
    )
    assert settings.pace_for("a.example") == Pace()
    assert settings.pace_for("b.example").burst == 3


@pytest.mark.parametrize(
    ("written", "key"),
    [
        ("WWW.Example.org.", "www.example.org"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("*.BÜCHER.example", "shop.xn--bcher-kva.example"),
        ("[2001:DB8::1]", "2001:db8::1"),
        ("0x7f.1", "127.0.0.1"),
    ],
)
def test_a_host_may_be_written_in_any_spelling(written: str, key: str) -> None:
    """It is normalised as the hosts of requests are."""
    assert read(HOSTGATE_HOSTS={written: {"rate": 3}}).pace_for(key).rate == 3


def test_two_spellings_of_one_host_are_a_mistake() -> None:
    """Which of the two should win?"""
    assert error_of(HOSTGATE_HOSTS={"a.example": {}, "A.example.": {}}) == (
        "HOSTGATE_HOSTS names 'a.example' twice, once as 'A.example.'."
    )


@pytest.mark.parametrize(
    "pattern",
    [
        *("http://x", "http://x.example/", "x.example/path", "x.example:8080", "u@x.example"),
        *("*", "*.", "**", "a.*.b", "*.*.b", "*a.example", "a.*", "", " ", "a b", "a..b"),
        *("*.10", "*.127.0.0.1", "*.[::1]"),
        5,
    ],
)
def test_a_pattern_that_matches_nothing_is_refused(pattern: object) -> None:
    """Named, with what is allowed and an example of it."""
    assert error_of(HOSTGATE_HOSTS={pattern: {"rate": 1}}) == (
        f"HOSTGATE_HOSTS key {pattern!r} must be a host name or address without scheme, port or "
        'path ("www.example.org"), or "*." and a name for every host below it ("*.example.org").'
    )


def test_an_unknown_host_key_is_named_with_what_was_meant() -> None:
    """Setting, host, key and the keys that there are."""
    assert error_of_host({"concurency": 1}) == (
        "HOSTGATE_HOSTS['a.example'] has the key 'concurency', which is not known (did you mean "
        "concurrency?). Allowed: concurrency, max_concurrency, rate, burst, reason."
    )


@pytest.mark.parametrize("options", [3, None, "rate", [1]], ids=repr)
def test_an_entry_must_be_a_dict(options: object) -> None:
    """Its keys are told."""
    assert error_of_host(options) == (
        f"HOSTGATE_HOSTS['a.example'] is {options!r}, but must be a dict with keys out of "
        "concurrency, max_concurrency, rate, burst, reason."
    )


@pytest.mark.parametrize("value", [0, -1, 1.5, True, math.nan, "two", [1]], ids=repr)
@pytest.mark.parametrize("option", ["concurrency", "max_concurrency", "burst"])
def test_the_whole_numbers_of_an_entry(option: str, value: object) -> None:
    """The same check as for the project's own, with the host and the key in the message."""
    assert error_of_host({option: value, "rate": 1}) == (
        f"HOSTGATE_HOSTS['a.example'][{option!r}] is {value!r}, "
        "but must be a whole number, 1 or more."
    )


@pytest.mark.parametrize("value", [0, -1, "0", True, math.nan, math.inf, "fast", [1]], ids=repr)
def test_the_rate_of_an_entry(value: object) -> None:
    """HG-36: zero, negative and garbage are refused at start-up."""
    assert error_of_host({"rate": value}) == (
        f"HOSTGATE_HOSTS['a.example']['rate'] is {value!r}, "
        "but must be a number of requests per second above 0, at least one a day."
    )


def test_a_burst_needs_a_rate() -> None:
    """Alone it would mean nothing."""
    assert error_of_host({"burst": 3}) == (
        "HOSTGATE_HOSTS['a.example']['burst'] is 3, but must be given together with \"rate\"."
    )


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ({"concurrency": 5, "reason": "big"}, 4),
        ({"concurrency": 3, "max_concurrency": 2, "reason": "big"}, 2),
    ],
)
def test_an_entrys_start_above_its_ceiling_is_refused(options: dict[str, Any], most: int) -> None:
    """Its own ceiling, or the project's where it has none."""
    assert error_of_host(options) == (
        f"HOSTGATE_HOSTS['a.example']['concurrency'] is {options['concurrency']}, "
        f"but must be at most the host's max_concurrency ({most})."
    )


def test_a_lower_ceiling_takes_the_start_with_it() -> None:
    """``max_concurrency`` 1 alone is 1 to start."""
    law = read(HOSTGATE_HOSTS={"a.example": {"max_concurrency": 1}}).law_for("a.example")
    assert (law.start, law.ceiling) == (1, 1)


@pytest.mark.parametrize(
    ("option", "number", "project"), [("concurrency", 3, 2), ("max_concurrency", 5, 4)]
)
@pytest.mark.parametrize("reason", [None, "", "  "])
def test_a_host_is_not_raised_without_a_reason(
    option: str, number: int, project: int, reason: str | None
) -> None:
    """No reason, no start; with one it is in the start-up line."""
    options = {option: number} if reason is None else {option: number, "reason": reason}
    assert error_of_host(options) == (
        f"HOSTGATE_HOSTS['a.example'][{option!r}] is {number}, but must be at most the project's "
        f'{project}, or more with a "reason" saying why this host can bear it.'
    )
    settings = read(HOSTGATE_HOSTS={"a.example": {option: number, "reason": "ours"}})
    assert "(ours)" in settings.describe()


def test_lowering_a_host_needs_no_reason() -> None:
    """Only raising does; and at the project's own values there is nothing to raise."""
    options = {"concurrency": 2, "max_concurrency": 4}
    assert read(HOSTGATE_HOSTS={"a.example": options, "b.example": {"concurrency": 1}})


def test_a_reason_must_be_a_text() -> None:
    """``True`` is no reason."""
    assert error_of_host({"concurrency": 3, "reason": True}) == (
        "HOSTGATE_HOSTS['a.example']['reason'] is True, but must be a text."
    )


# -- HOSTGATE_KEY -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["host", "domain", "slot"])
def test_the_three_kinds_of_key(kind: str) -> None:
    """By name; there is no function then."""
    settings = read(HOSTGATE_KEY=kind)
    assert (settings.key, settings.key_function) == (kind, None)
    assert f"per {kind}" in settings.describe()


@pytest.mark.parametrize("value", [key_of_request, f"{__name__}.key_of_request"])
def test_a_callable_may_make_the_key(value: object) -> None:
    """Itself or its import path."""
    settings = read(HOSTGATE_KEY=value)
    assert settings.key_function is not None
    assert settings.key_function(Request("http://a.example")) == "k"
    assert settings.key not in ("host", "domain", "slot")


@pytest.mark.parametrize("value", ["hosts", "no.such.module", "os.sep", 5, ""], ids=repr)
def test_no_other_key_is_known(value: object) -> None:
    """Named, with its value."""
    message = error_of(HOSTGATE_KEY=value)
    assert message.startswith(f"HOSTGATE_KEY is {os_sep_or(value)}, but must be ")
    assert "import path" in message


def os_sep_or(value: object) -> str:
    """An import path that leads to something is shown as what it leads to."""
    return repr("/") if value == "os.sep" else repr(value)


def test_with_domains_a_host_below_one_matches_nothing() -> None:
    """``HOSTGATE_KEY = "domain"``: an entry for www.example.co.uk would never be looked up."""
    message = error_of_host({"rate": 1}, "www.example.co.uk", HOSTGATE_KEY="domain")
    assert message == (
        "HOSTGATE_HOSTS key 'www.example.co.uk' matches nothing, because HOSTGATE_KEY = "
        "\"domain\": it must be a registrable domain, 'example.co.uk' perhaps."
    )
    settings = read(HOSTGATE_KEY="domain", HOSTGATE_HOSTS={"example.co.uk": {"rate": 1}})
    assert settings.pace_for("example.co.uk").rate == 1


def test_with_domains_a_pattern_below_one_matches_nothing() -> None:
    """No key is below a registrable domain; below a public suffix they all are."""
    settings = read(HOSTGATE_KEY="domain", HOSTGATE_HOSTS={"*.co.uk": {"rate": 1}})
    assert settings.pace_for("example.co.uk").rate == 1
    message = error_of_host({"rate": 1}, "*.example.co.uk", HOSTGATE_KEY="domain")
    assert message.startswith("HOSTGATE_HOSTS key '*.example.co.uk' matches nothing")


def test_with_slots_the_users_own_names_are_taken() -> None:
    """They need not be hosts."""
    settings = read(HOSTGATE_KEY="slot", HOSTGATE_HOSTS={"My slot #1": {"rate": 1}})
    assert settings.pace_for("My slot #1").rate == 1


@pytest.mark.parametrize("value", [is_refusal, f"{__name__}.is_refusal"])
def test_the_detector_is_found(value: object) -> None:
    """Itself or its import path; none unless set."""
    detector = read(HOSTGATE_REFUSAL_DETECTOR=value).refusal_detector
    assert detector is not None
    assert detector.__name__ == "is_refusal"
    assert read().refusal_detector is None


# -- Scrapy's own settings ----------------------------------------------------------------------


def bounds(settings: HostGateSettings, host: str = "a.example") -> tuple[int, int]:
    law = settings.law_for(host)
    return law.start, law.ceiling


def test_scrapys_bound_counts_only_where_the_project_set_it() -> None:
    """Its default of 8 says nothing."""
    settings = read()
    assert settings.scrapy_concurrency is None
    assert "CONCURRENT_REQUESTS_PER_DOMAIN" not in settings.describe()


@pytest.mark.parametrize(
    ("value", "expected"), [(1, (1, 1)), (3, (2, 3)), (8, (2, 4)), (0, (2, 4)), ("1", (1, 1))]
)
def test_scrapys_bound_only_tightens(value: object, expected: tuple[int, int]) -> None:
    """1 and 3 lower the ceiling, 8 raises nothing, 0 is no bound."""
    assert bounds(read(CONCURRENT_REQUESTS_PER_DOMAIN=value)) == expected


def test_scrapys_bound_tightens_a_raised_host_too() -> None:
    """The hard maximum of the project's own file is not lifted by an entry."""
    settings = read(
        CONCURRENT_REQUESTS_PER_DOMAIN=3,
        HOSTGATE_HOSTS={"a.example": {"concurrency": 4, "max_concurrency": 8, "reason": "ours"}},
    )
    assert bounds(settings) == (3, 3)


def test_a_download_slot_only_tightens() -> None:
    """Its concurrency lowers this host and no other; a larger one changes nothing."""
    settings = read(
        DOWNLOAD_SLOTS={
            "A.example": {"concurrency": 1, "delay": 2.5, "randomize_delay": False},
            "b.example": {"concurrency": 16},
        }
    )
    assert bounds(settings, "a.example") == (1, 1)
    assert bounds(settings, "b.example") == (2, 4)
    assert bounds(settings, "c.example") == (2, 4)
    pace = settings.pace_for("a.example")
    assert (pace.delay_s, pace.jitter) == (2.5, 0.0)
    assert settings.pace_for("b.example").delay_s == 0


def test_a_download_slot_that_is_none_is_named() -> None:
    """Scrapy would fail at the first request."""
    assert error_of(DOWNLOAD_SLOTS={"a.example": 5}) == (
        "DOWNLOAD_SLOTS['a.example'] is 5, but must be a dict with concurrency, delay or jitter."
    )


def test_a_download_slot_that_bounds_nothing_is_not_in_the_line() -> None:
    """Jitter alone is none that anybody has to know of at the start."""
    line = read(DOWNLOAD_SLOTS={"a.example": {"jitter": 0.1}}).describe()
    assert "DOWNLOAD_SLOTS" not in line


def test_the_download_delay_is_spacing() -> None:
    """For every host; a slot's own delay stands instead of it, as in Scrapy."""
    settings = read(DOWNLOAD_DELAY="1.5", DOWNLOAD_SLOTS={"a.example": {"delay": 4}})
    assert settings.pace_for("b.example").delay_s == 1.5
    assert settings.pace_for("a.example").delay_s == 4


def test_a_rate_and_a_delay_both_hold() -> None:
    """The pacer takes the longer; a high rate cannot loosen a delay."""
    settings = read(DOWNLOAD_DELAY=2, HOSTGATE_HOSTS={"a.example": {"rate": 10}})
    pace = settings.pace_for("a.example")
    assert (pace.rate, pace.delay_s) == (10, 2)


def test_a_spiders_own_delay_can_only_add() -> None:
    """``download_delay`` of older releases: longer counts, shorter does not."""

    class Slow(Spider):
        name = "slow"
        download_delay = 3

    assert read(Slow()).delay_s == 3
    assert read(Slow(), DOWNLOAD_DELAY=5).delay_s == 5
    assert read(Spider("plain"), DOWNLOAD_DELAY=5).delay_s == 5


@pytest.mark.parametrize(
    ("values", "jitter"),
    [
        ({}, 0.5),
        ({"RANDOMIZE_DOWNLOAD_DELAY": True}, 0.5),
        ({"RANDOMIZE_DOWNLOAD_DELAY": False}, 0.0),
        ({"RANDOMIZE_DOWNLOAD_DELAY": "False"}, 0.0),
        ({"DOWNLOAD_DELAY_JITTER": 0.1}, 0.1),
        ({"DOWNLOAD_DELAY_JITTER": "0"}, 0.0),
        ({"DOWNLOAD_DELAY_JITTER": 0.2, "RANDOMIZE_DOWNLOAD_DELAY": False}, 0.2),
    ],
)
def test_the_jitter_is_scrapys(values: dict[str, Any], jitter: float) -> None:
    """The newer setting where it was set, else the older flag, else ± 50 %."""
    assert read(**values).pace_for("a.example").jitter == jitter


def test_autothrottle_lends_its_start_delay() -> None:
    """Only while it is enabled."""
    assert read().start_delay_s is None
    assert read(AUTOTHROTTLE_ENABLED=True).start_delay_s == 5.0
    assert read(AUTOTHROTTLE_ENABLED=True, AUTOTHROTTLE_START_DELAY=2).start_delay_s == 2.0


# -- the start-up line --------------------------------------------------------------------------


def test_the_line_of_an_untouched_project() -> None:
    """Short: the two numbers."""
    assert read().describe() == "2 in flight per host to start, 4 at most"


def test_the_line_says_which_setting_won() -> None:
    """Every bound, where it comes from, and every host's reason."""
    settings = read(
        CONCURRENT_REQUESTS_PER_DOMAIN=3,
        DOWNLOAD_DELAY=0.25,
        AUTOTHROTTLE_ENABLED=True,
        DOWNLOAD_SLOTS={"s.example": {"concurrency": 1, "delay": 2}},
        HOSTGATE_HOSTS={
            "slow.example": {"concurrency": 1, "rate": 0.5},
            "*.cdn.example": {"max_concurrency": 6, "reason": "agreed by mail"},
        },
    )
    assert settings.describe() == (
        "2 in flight per host to start, 3 at most; "
        "CONCURRENT_REQUESTS_PER_DOMAIN=3 tightens it; "
        "DOWNLOAD_DELAY=0.25 s spaces departures; "
        "AutoThrottle adds its delay, 5 s to start; "
        "DOWNLOAD_SLOTS['s.example']: concurrency 1, delay 2 s; "
        "slow.example: 1 to 3, 0.5/s burst 1; "
        "*.cdn.example: 2 to 3 (agreed by mail)"
    )


def test_the_line_says_which_setting_did_not_win() -> None:
    """8 is looser than 4."""
    assert read(CONCURRENT_REQUESTS_PER_DOMAIN=8).describe() == (
        "2 in flight per host to start, 4 at most; "
        "CONCURRENT_REQUESTS_PER_DOMAIN=8 does not tighten it"
    )


# -- a fleet ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("HOSTGATE_FLEET_LEASE", 0.5, "from 1 to 3600"),
        ("HOSTGATE_FLEET_LEASE", "long", "a number of seconds above 0"),
        ("HOSTGATE_FLEET_TIMEOUT", 16, r"at most HOSTGATE_FLEET_LEASE \(15\)"),
        ("HOSTGATE_FLEET_TTL", 29, r"at least twice HOSTGATE_FLEET_LEASE \(15\)"),
        ("HOSTGATE_FLEET_FAIL", "open", '"alone" or "closed"'),
    ],
)
def test_a_wrong_number_of_the_fleet(name: str, value: object, allowed: str) -> None:
    """The error names the setting, the value and what is allowed."""
    with pytest.raises(HostGateSettingsError, match=f"^{name} is .*{allowed}"):
        read(**{name: value})


def test_what_is_no_fleet_url_is_not_shown() -> None:
    """It may hold a password, also where it is no text."""
    with pytest.raises(HostGateSettingsError, match="HOSTGATE_FLEET_URL is a list") as caught:
        read(HOSTGATE_FLEET_URL=["redis://:secret@host"])
    assert "secret" not in str(caught.value)
