"""The same crawl on every reactor, without one, and by Scrapy's own commands (HG-24)."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from child import REACTORS, run_child
from harness import pages
from redis_server import RedisServer
from scrapy.settings import default_settings

from demo.behaviours import Reply, scripted, steady
from demo.origin import OriginThread

HOST = "127.0.0.2"
OTHER = "127.0.0.3"
BREAKING = "127.0.0.4"


@pytest.fixture(params=list(REACTORS))
def reactor(request: pytest.FixtureRequest) -> str:
    """The name of each reactor that this Scrapy and this machine have."""
    name: str = request.param
    if name == "uvloop" and importlib.util.find_spec("uvloop") is None:
        pytest.skip("uvloop is not installed")
    if name == "none" and not hasattr(default_settings, "TWISTED_REACTOR_ENABLED"):
        pytest.skip("this Scrapy always runs a reactor")
    return name


def check_crawl(settings: dict[str, Any], reactor: str) -> None:
    """20 pages of two hosts, of which one refuses its third request and asks for a second; beside
    them three downloads that break."""
    fast = Reply(delay=0.05)
    refuses = scripted([fast, fast, Reply(429, {"Retry-After": "1"})], fast)
    with OriginThread({HOST: refuses, OTHER: steady(0.1)}) as origin:
        broken = [
            origin.url(BREAKING, "/closed?end=close"),
            origin.url(BREAKING, "/half?end=mid"),
            "http://127.0.0.9:1/nobody",
        ]
        job = [*broken, *pages(origin, HOST, 10), *pages(origin, OTHER, 10)]
        once = {"RETRY_TIMES": 0, "HOSTGATE_REFUSAL_RETRIES": 1}
        result = run_child(job, once | settings, reactor=reactor)
        record, other = origin.record(HOST), origin.record(OTHER)
    assert result.returncode == 0, result.log
    assert "Traceback" not in result.log, result.log
    assert [status for _, status in result.answers] == [200] * 20
    assert sorted(url for url, _ in result.failures) == sorted(broken)
    assert result.left == {"active": 0}
    # The refusal may come before the first host has had two at a time.
    assert record.peak <= other.peak == 2
    assert (len(record.arrivals), len(other.arrivals)) == (11, 10)
    refused = next(a for a in record.arrivals if a.status == 429)
    assert refused.ended is not None
    # The other place may have been used once more before the client heard of the refusal.
    assert len(record.arrivals_between(refused.ended, refused.ended + 0.99)) <= 1


def test_a_crawl_is_the_same_on_every_reactor(reactor: str) -> None:
    """The same bound, the same pause, every page, every error, and nothing left; without a reactor
    none is imported (the child looks)."""
    check_crawl({}, reactor)


# -- with a fleet --------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[RedisServer]:
    pytest.importorskip("redis")
    server = RedisServer().start()
    yield server
    server.stop()


@pytest.mark.parametrize("reactor", ["none"], indirect=True)
def test_a_fleet_needs_no_reactor(server: RedisServer, reactor: str) -> None:
    """With Redis, the same crawl; no permit is left in it."""
    check_crawl({"HOSTGATE_FLEET_URL": server.url}, reactor)
    assert server.command("KEYS", "*:permits") == []


@pytest.mark.parametrize("reactor", ["select"], indirect=True)
def test_a_fleet_without_asyncio_is_refused_at_start(reactor: str) -> None:
    """The message names the setting and what to do; the host is not asked."""
    with OriginThread() as origin:
        settings = {"HOSTGATE_FLEET_URL": "redis://127.0.0.1:1"}
        result = run_child(pages(origin, HOST, 3), settings, reactor=reactor)
        assert origin.record(HOST).arrivals == []
    assert result.returncode != 0
    assert "HOSTGATE_FLEET_URL is set, but a fleet needs an asyncio event loop" in result.log


# -- by Scrapy's commands ------------------------------------------------------------------------

PROJECT = """
SPIDER_MODULES = ["seen"]
TELNETCONSOLE_ENABLED = False
DOWNLOADER_MIDDLEWARES = {"scrapy_hostgate.HostGateMiddleware": 1000}
"""
SPIDER = '''
from scrapy import Request, Spider

class SeenSpider(Spider):
    name = "seen"

    def parse(self, response):
        """Contracts, and what ``scrapy parse`` does.

        @url ORIGIN/contract
        @returns items 1 1
        """
        yield {"status": response.status, "path": response.url.rpartition("/")[2]}
'''


def test_scrapys_commands_ask_each_page_once_and_end(tmp_path: Path) -> None:
    """fetch, shell, parse and check, in a project with the one line: exit code 0, the answer
    printed, the page asked for once."""
    with OriginThread() as origin:
        url = origin.url(HOST)
        (tmp_path / "scrapy.cfg").write_text("[settings]\ndefault = seen_settings\n")
        (tmp_path / "seen_settings.py").write_text(PROJECT)
        (tmp_path / "seen.py").write_text(SPIDER.replace("ORIGIN/", url))
        commands = {
            f"{url}fetch": ["fetch"],
            f"{url}headers": ["fetch", "--headers"],
            f"{url}shell": ["shell", "-c", f"(response.status, fetch({url + 'again'!r}))"],
            f"{url}parse": ["parse", "--spider=seen"],
            "seen": ["check"],
        }
        running = [
            subprocess.Popen(
                [sys.executable, "-m", "scrapy", *command, target],
                cwd=tmp_path,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for target, command in commands.items()
        ]
        told = [process.communicate(timeout=60) for process in running]
        paths = sorted(arrival.path for arrival in origin.record(HOST).arrivals)
    assert [process.returncode for process in running] == [0] * len(running), told
    assert paths == ["/again", "/contract", "/fetch", "/headers", "/parse", "/shell"]
    fetched, headers, shell, parsed, _ = (output for output, _ in told)
    assert "<p>ok</p>" in fetched
    assert "Content-Type" in headers
    assert "(200, None)" in shell
    assert "'path': 'parse'" in parsed
    assert "Traceback" not in "".join(log for _, log in told)
