"""More servers and modes for the site of ``realsite.py``: nginx in other set-ups, and HAProxy.

    python benchmarks/realservers.py [--mode NAME,...] [--only stock,hostgate] [--json FILE]

The same site and the same spider; each crawl is a process of its own, against a freshly started
server, and is judged by that server's log.

``no-keepalive``
    nginx with two requests at a time per client (429 beyond), a new connection for each.
``gzip``
    the same with keep-alive and packed pages.
``h2``
    the same over TLS with HTTP/2, fetched by Scrapy's HTTP/2 handler; nginx counts each stream.
``both``
    two at a time (429) and 20 per second (503, ``Retry-After: 1``).
``haproxy``
    HAProxy before nginx, with a stick table: 429 beyond 20 requests in any second, and what is
    refused counts too. ``Retry-After: 1``.

Exit status: 0 if ``hostgate`` got every page with at most 10 refusals in every mode, 1 if not, 2 if
the measurement could not be made.

Needs what ``realsite.py`` needs, openssl for ``h2``, and haproxy for ``haproxy``.
"""

from __future__ import annotations

import argparse
import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import quote

import scrapy
from realsite import (
    CONN_LIMITS,
    CONN_ZONES,
    CONTENDERS,
    NGINX_CONF,
    REFUSAL_STATUSES,
    REQ_LIMITS,
    REQ_ZONES,
    REQUESTS_PER_S,
    RETRY_AFTER_LOCATION,
    DocsSpider,
    LogLine,
    Result,
    SetupError,
    arrivals_after_first_refusal,
    delivered_pages,
    end_process,
    ensure_site,
    expected_pages,
    free_port,
    peak_in_flight,
    read_access_log,
    run_child,
    table,
    wait_until_listening,
)
from scrapy.crawler import CrawlerProcess

MODES = ("no-keepalive", "gzip", "h2", "both", "haproxy")
MOST_REFUSALS = 10
H2_HANDLER = "scrapy.core.downloader.handlers.http2.H2DownloadHandler"
OPENSSL = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]

HAPROXY_CONF = """\
global
    log stdout format raw local0
defaults
    mode http
    timeout client 60s
    timeout server 60s
    timeout connect 5s
frontend web
    bind 127.0.0.1:{port}
    log global
    log-format "%ST %[date(0,ms)] %Ta %HU"
    stick-table type ip size 1k expire 30s store http_req_rate(1s)
    http-request track-sc0 src
    http-request return status 429 hdr Retry-After 1 if {{ sc_http_req_rate(0) gt {rate} }}
    default_backend pages
backend pages
    server nginx 127.0.0.1:{behind}
"""


# --- servers -------------------------------------------------------------------------------


def nginx_conf(mode: str, temp: Path, docs: Path, port: int) -> str:
    zones, limits, locations, listen = CONN_ZONES, CONN_LIMITS, "", str(port)
    if mode == "no-keepalive":
        limits += "\n            keepalive_timeout 0;"
    elif mode == "gzip":
        zones += "\n    gzip on; gzip_min_length 100;"
    elif mode == "h2":
        listen = f"{port} ssl http2"
        zones += f'\n    ssl_certificate "{temp}/cert.pem"; ssl_certificate_key "{temp}/key.pem";'
        files = [
            "-subj",
            "/CN=127.0.0.1",
            "-out",
            str(temp / "cert.pem"),
            "-keyout",
            str(temp / "key.pem"),
        ]
        subprocess.run([*OPENSSL, *files], check=True, capture_output=True, timeout=60)
    elif mode == "both":
        zones += "\n    " + REQ_ZONES.replace("zone=clients", "zone=pace")
        limits += "\n            " + REQ_LIMITS.replace("zone=clients", "zone=pace")
        limits += "\n            error_page 503 @refused;"
        locations = RETRY_AFTER_LOCATION
    elif mode == "haproxy":
        zones = limits = ""
    return NGINX_CONF.format(
        temp=temp,
        docs=docs,
        port=listen,
        user=f"user {pwd.getpwuid(0).pw_name};" if os.geteuid() == 0 else "",
        zones=zones,
        limits=limits,
        locations=locations,
    )


@contextmanager
def running(command: list[str], port: int, temp: Path, output: Path) -> Iterator[None]:
    """A server of our own, from when it listens until the end of the block."""
    with output.open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        try:
            wait_until_listening(process, port, temp)
            yield
        finally:
            end_process(process)


@contextmanager
def server(mode: str, nginx: str, temp: Path, docs: Path) -> Iterator[int]:
    """The server of ``mode``; yields the port that clients ask."""
    port = free_port()
    conf = temp / "nginx.conf"
    conf.write_text(nginx_conf(mode, temp, docs, port))
    command = [nginx, "-p", str(temp), "-e", str(temp / "error.log"), "-c", str(conf)]
    with running(command, port, temp, temp / "nginx.log"):
        if mode != "haproxy":
            yield port
            return
        haproxy = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin")
        if haproxy is None:
            raise SetupError("haproxy not found: install it, or leave the mode out with --mode")
        front = free_port()
        conf = temp / "haproxy.cfg"
        conf.write_text(HAPROXY_CONF.format(port=front, behind=port, rate=REQUESTS_PER_S))
        with running([haproxy, "-db", "-f", str(conf)], front, temp, temp / "haproxy.log"):
            yield front


def read_log(mode: str, temp: Path) -> list[LogLine]:
    """What the server in front wrote down."""
    if mode != "haproxy":
        return read_access_log(temp / "access.log")
    lines = []
    for text in (temp / "haproxy.log").read_text(errors="replace").splitlines():
        words = text.split()
        # Its own messages, and the connection that asked nothing, are among them.
        if len(words) == 4 and words[0].isdigit() and words[3] != "<BADREQ>":
            ended_ms = int(words[1])
            lines.append(LogLine(int(words[0]), ended_ms - max(0, int(words[2])), ended_ms))
    return lines


# --- one crawl -----------------------------------------------------------------------------


class SiteSpider(DocsSpider):
    """Over TLS if told so."""

    scheme = "http"

    def request_for(self, page: str) -> scrapy.Request:
        return scrapy.Request(f"{self.scheme}://{self.host}{quote(page)}", callback=self.parse)


def crawl_here(contender: str, mode: str, port: int, temp: Path) -> int:
    """What the child process does: one crawl with Scrapy's defaults and the contender's own."""
    settings: dict[str, Any] = {
        "ROBOTSTXT_OBEY": False,
        "TELNETCONSOLE_ENABLED": False,
        "LOG_FILE": str(temp / "scrapy.log"),
        "LOG_LEVEL": "INFO",
        **CONTENDERS[contender],
    }
    if mode == "h2":
        settings["DOWNLOAD_HANDLERS"] = {"https": H2_HANDLER}
    process = CrawlerProcess(settings)
    process.crawl(
        SiteSpider,
        host=f"127.0.0.1:{port}",
        pages_file=str(temp / "pages.txt"),
        scheme="https" if mode == "h2" else "http",
    )
    process.start()
    return 1 if process.bootstrap_failed else 0


def measure(
    contender: str, mode: str, nginx: str, docs: Path, pages: set[str], temp: Path, timeout_s: float
) -> Result:
    temp.mkdir(parents=True)
    command = [sys.executable, str(Path(__file__).resolve()), "--mode", mode, "--child", contender]
    with server(mode, nginx, temp, docs) as port:
        command += ["--child-port", str(port), "--child-dir", str(temp)]
        seconds, error = run_child(command, temp, timeout_s)
    lines = read_log(mode, temp)
    return Result(
        contender=contender,
        pages=len(delivered_pages(temp) & pages),
        asked=len(pages),
        refusals=sum(line.status in REFUSAL_STATUSES for line in lines),
        requests=len(lines),
        seconds=round(seconds, 1),
        peak=peak_in_flight(lines),
        after_refusal=arrivals_after_first_refusal(lines),
        error=error,
    )


def failures(result: Result) -> list[str]:
    """What hostgate did not keep, in words."""
    failed = [result.error] if result.error is not None else []
    if result.pages < result.asked:
        failed.append(f"{result.asked - result.pages} of {result.asked} pages were lost")
    if result.refusals > MOST_REFUSALS:
        failed.append(f"{result.refusals} refusals, at most {MOST_REFUSALS} allowed")
    return failed


# --- the command ---------------------------------------------------------------------------


def names(allowed: tuple[str, ...]) -> Any:
    def read(text: str) -> list[str]:
        given = [name for name in text.split(",") if name]
        if not given or set(given) - set(allowed):
            raise argparse.ArgumentTypeError(f"{text!r}: choose from {', '.join(allowed)}")
        return given

    return read


def compare(options: argparse.Namespace, temp: Path) -> int:
    nginx, docs = ensure_site(options.docs)
    pages = set(expected_pages(docs))
    told: dict[str, Any] = {"scrapy": scrapy.__version__, "pages": len(pages), "modes": {}}
    failed = []
    for mode in options.mode:
        results = []
        for contender in options.only:
            print(f"{mode}, {contender} ...", flush=True)
            folder = temp / mode / contender
            result = measure(contender, mode, nginx, docs, pages, folder, options.timeout)
            results.append(result)
            if contender == "hostgate":
                failed += [f"{mode}: {failure}" for failure in failures(result)]
        print(f"\n{mode}\n{table(results)}\n", flush=True)
        told["modes"][mode] = [asdict(result) for result in results]
    for failure in failed:
        print(f"FAILED: hostgate, {failure}")
    if options.json is not None:
        options.json.write_text(json.dumps(told | {"failures": failed}, indent=2) + "\n")
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Crawl a real site behind more real servers.")
    parser.add_argument("--mode", type=names(MODES), default=list(MODES), metavar="NAME,...")
    contenders = tuple(CONTENDERS)
    parser.add_argument(
        "--only", type=names(contenders), default=["stock", "hostgate"], metavar="NAME,..."
    )
    parser.add_argument("--docs", type=Path, metavar="DIR", help="serve this directory instead")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here too")
    parser.add_argument("--timeout", type=float, default=400.0, metavar="SECONDS")
    # How this script starts itself for one crawl.
    parser.add_argument("--child", choices=contenders, help=argparse.SUPPRESS)
    parser.add_argument("--child-port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--child-dir", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        return crawl_here(options.child, options.mode[0], options.child_port, options.child_dir)
    temp = Path(tempfile.mkdtemp(prefix="realservers-"))
    try:
        return compare(options, temp)
    except (SetupError, OSError, subprocess.SubprocessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    finally:
        shutil.rmtree(temp, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
