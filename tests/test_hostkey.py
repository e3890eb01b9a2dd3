"""One spelling for each host."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scrapy_hostgate.hostkey import is_valid_host, normalise_host

SPELLINGS = {
    "www.example.org": [
        "www.example.org",
        "WWW.Example.ORG",
        "www.example.org.",
        " www.example.org ",
        "www。example．org",
    ],
    "xn--bcher-kva.example": [
        "bücher.example",
        "BÜCHER.example",
        "bu\u0308cher.example",
        "xn--bcher-kva.example",
        "XN--BCHER-KVA.EXAMPLE.",
    ],
    "strasse.example": ["straße.example", "STRASSE.example"],
    "localhost": ["localhost", "LOCALHOST."],
    "127.0.0.1": [
        "127.0.0.1",
        "127.0.0.1.",
        "127.1",
        "127.0.1",
        "2130706433",
        "0x7f000001",
        "0x7F.1",
        "0x7f.0x0.0x0.0x1",
        "0177.0.0.1",
        "017700000001",
        "::ffff:127.0.0.1",
        "[::FFFF:7f00:1]",
        "１２７.０.０.１",
        "１２７.１",
    ],
    "2001:db8::1": [
        "2001:db8::1",
        "[2001:db8::1]",
        "2001:DB8:0:0:0:0:0:1",
        "2001:0db8:0000:0000:0000:0000:0000:0001",
        "[2001:db8::0:1]",
    ],
    "::1": ["::1", "[::1]", "0:0:0:0:0:0:0:1"],
    "": ["", ".", " "],
}


@pytest.mark.parametrize(
    ("spelling", "host"),
    [(spelling, host) for host, spellings in SPELLINGS.items() for spelling in spellings],
)
def test_every_spelling_is_the_same_host(spelling: str, host: str) -> None:
    """Each would otherwise have an allowance of its own."""
    assert normalise_host(spelling) == host


@pytest.mark.parametrize(
    "odd",
    [
        "a_b.example",
        "-x.example",
        "256.1.1.1",
        "1.2.3.4.5",
        "08",
        "4294967296",
        "ä..example",
        "a:b",
    ],
)
def test_an_odd_name_is_still_a_name(odd: str) -> None:
    """What no rule covers comes back in lower case; nothing raises."""
    assert normalise_host(odd.upper()) == odd


def test_different_hosts_stay_different() -> None:
    """Neither a sub-domain nor a neighbour address is folded in."""
    hosts = ["example.org", "www.example.org", "127.0.0.1", "127.0.0.2", "::1", "::2", "1"]
    assert len({normalise_host(host) for host in hosts}) == len(hosts)


@given(st.text(max_size=30) | st.from_regex(r"[\[\]0-9a-fx.: １２。ßİ]{0,12}", fullmatch=True))
@example("１２７.１")
@example("a .")
@example("[[a]]")
@settings(deadline=None, max_examples=100)
def test_normalising_twice_changes_nothing(host: str) -> None:
    """The one spelling is its own spelling, and nothing raises, whatever the text."""
    once = normalise_host(host)
    assert normalise_host(once) == once


@given(st.ip_addresses(v=4))
@settings(deadline=None, max_examples=50)
def test_an_ipv4_address_is_itself(address: object) -> None:
    """Every address in dotted decimal is normal, and so is its number."""
    assert normalise_host(str(address)) == str(address)
    assert normalise_host(str(int(address))) == str(address)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("host", "valid"),
    [
        ("example.org", True),
        ("localhost", True),
        ("a_b.example", True),
        ("xn--bcher-kva.example", True),
        ("127.0.0.1", True),
        ("::1", True),
        ("2001:db8::1", True),
        ("a" * 63 + ".example", True),
        ("", False),
        ("*", False),
        ("a.*.b", False),
        ("a..b", False),
        ("-a.example", False),
        ("a-.example", False),
        ("a b", False),
        ("a/b", False),
        ("user@host", False),
        ("host:80", False),
        ("http://x", False),
        ("a" * 64 + ".example", False),
        (".".join(["a" * 49] * 6), False),
    ],
)
def test_which_hosts_a_url_can_have(host: str, valid: bool) -> None:
    """For patterns in the settings: a host, not a URL, a port or a wild card."""
    assert is_valid_host(host) is valid
