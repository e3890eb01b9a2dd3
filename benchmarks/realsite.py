"""Measure polite crawling of a real site: the Python documentation behind a strict nginx.

    python benchmarks/realsite.py [--mode conn|req|req-retry-after] [--only NAME,...]
                                  [--docs DIR] [--json FILE]

The site is the HTML documentation that the distribution packages, served on the loopback
interface by an nginx of our own that refuses a client which asks for too much:

``conn``
    two requests at a time per client address (``limit_conn``), 429 beyond that, and bodies sent
    at 400k per second, so that a request lasts long enough for concurrency to matter.
``req``
    20 requests per second per client address (``limit_req``, ``burst=5``), 503 beyond that.
``req-retry-after``
    the same, and every refusal carries ``Retry-After: 1``.

Which pages should be found is worked out from the files, without Scrapy. Then every contender
crawls the site from its front page by following links, in a process of its own and against a
freshly started nginx, and is judged by what nginx's access log says.

Exit status: 0 if ``hostgate`` kept its promise (or was not asked to run), 1 if it did not, 2 if
the measurement could not be made.

Needs nginx and a ``python3.*-doc`` package; as root on a system with apt-get they are installed
when they are missing. Linux only.
"""

from __future__ import annotations

import argparse
import http.client
import importlib.util
import json
import os
import posixpath
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

import scrapy
from scrapy.crawler import CrawlerProcess
from scrapy.http import HtmlResponse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from types import FrameType

MODES = ("conn", "req", "req-retry-after")

CONTENDERS: dict[str, dict[str, Any]] = {
    "stock": {},
    "stock-2": {"CONCURRENT_REQUESTS_PER_DOMAIN": 2},
    "autothrottle": {"AUTOTHROTTLE_ENABLED": True},
    "hostgate": {"DOWNLOADER_MIDDLEWARES": {"scrapy_hostgate.HostGateMiddleware": 1000}},
}

FRONT_PAGE = "/index.html"
REFUSAL_STATUSES = (429, 503)

# What nginx bears, and so what the ideal crawl would use.
CONNECTIONS = 2
BODY_BYTES_PER_S = 400 * 1024
REQUESTS_PER_S = 20
BURST = 5

AFTER_REFUSAL_MS = 2000
APT_TIMEOUT_S = 600
NGINX_START_TIMEOUT_S = 10
PROCESS_END_TIMEOUT_S = 10


class SetupError(Exception):
    """The measurement cannot be made; the message says what to do about it."""


# --- what has to be there ------------------------------------------------------------------


def find_nginx() -> str | None:
    # Debian keeps it in sbin, which is often missing from an ordinary user's PATH.
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")


def find_docs() -> Path | None:
    """The newest packaged Python documentation, or None."""
    found: list[tuple[int, Path]] = []
    for directory in Path("/usr/share/doc").glob("python3.*/html"):
        version = re.match(r"python3\.(\d+)", directory.parent.name)
        # The -dev and -venv packages link to this directory even when it is not installed.
        if version and (directory / "index.html").is_file():
            found.append((int(version[1]), directory.resolve()))
    return max(found)[1] if found else None


def newest_doc_package() -> str:
    """python3.11-doc, which the published figures are for, or else the newest apt knows."""
    names = subprocess.run(
        ["apt-cache", "search", "--names-only", r"^python3\.[0-9]+-doc$"],
        check=True,
        capture_output=True,
        text=True,
        timeout=APT_TIMEOUT_S,
    ).stdout
    minors = [int(minor) for minor in re.findall(r"^python3\.(\d+)-doc\b", names, re.MULTILINE)]
    if not minors:
        raise SetupError("apt knows no python3.*-doc package: pass --docs DIR instead")
    return f"python3.{11 if 11 in minors else max(minors)}-doc"


def install(need_nginx: bool, need_docs: bool) -> None:
    missing = " and ".join(
        name
        for name, needed in (("nginx", need_nginx), ("the Python documentation", need_docs))
        if needed
    )
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise SetupError(
            f"{missing} not found: install nginx (nginx-light will do) and python3.11-doc or a "
            "newer python3.*-doc, or pass --docs DIR for HTML pages that lie elsewhere"
        )
    print(f"{missing} not found: installing with apt-get", flush=True)
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}

    def apt_get(*arguments: str) -> None:
        subprocess.run(
            ["apt-get", *arguments],
            check=True,
            env=environ,
            stdout=subprocess.DEVNULL,
            timeout=APT_TIMEOUT_S,
        )

    try:
        apt_get("update")
        packages = ["nginx-light"] if need_nginx else []
        packages += [newest_doc_package()] if need_docs else []
        apt_get("install", "-y", *packages)
    except (subprocess.SubprocessError, OSError) as error:
        raise SetupError(f"apt-get could not install {missing}: {error}") from error


def ensure_site(docs: Path | None) -> tuple[str, Path]:
    """The nginx binary and the directory of pages, installed first where that is possible."""
    if docs is not None and not (docs / "index.html").is_file():
        raise SetupError(f"--docs {docs}: there is no index.html in it")
    nginx = find_nginx()
    pages = docs.resolve() if docs is not None else find_docs()
    if nginx is None or pages is None:
        install(nginx is None, pages is None)
        nginx = find_nginx()
        pages = pages or find_docs()
    if nginx is None or pages is None:
        raise SetupError("nginx or the documentation is still missing after apt-get install")
    return nginx, pages


# --- which pages should be found -----------------------------------------------------------


def page_of(page: str, href: str, host: str) -> str | None:
    """The page that a link on ``page`` leads to, or None if it leaves the site.

    A page is an unquoted path that starts with a slash and names a file. Both sides use this:
    ``dir/`` is ``dir/index.html``, fragments and queries are dropped, and only links that end in
    ``.html`` or a slash count.
    """
    try:
        link = urlsplit(href.strip())
    except ValueError:
        return None
    if link.scheme not in ("", "http") or link.netloc not in ("", host):
        return None
    if not link.path and not link.netloc:
        return page
    path = unquote(link.path) or "/"
    is_directory = path.endswith(("/", "/.", "/..")) or path in (".", "..")
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), path))
    # normpath keeps two leading slashes, as POSIX asks, but no web server does.
    path = "/" + path.lstrip("/")
    if is_directory:
        path = posixpath.join(path, "index.html")
    return path if path.endswith(".html") else None


def targets_of(page: str, hrefs: list[str], host: str) -> list[str]:
    """The pages that the links on ``page`` lead to, each once, in the order of the page."""
    targets = (page_of(page, href, host) for href in {href.partition("#")[0]: 0 for href in hrefs})
    return list(dict.fromkeys(target for target in targets if target is not None))


class LinkParser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.hrefs: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.hrefs += [value for name, value in attrs if name == "href" and value]


# Links, and what may hold the look of one. html.parser takes half a minute over every tag of the
# whole documentation, so it is only given the links.
LINKS = re.compile(
    r"""<!--.*?-->|<(script|style)\b.*?</\1\s*>|<a\s(?:[^>"']|"[^"]*"|'[^']*')*>""",
    re.DOTALL | re.IGNORECASE,
)


def links_of(file: Path) -> list[str]:
    parser = LinkParser()
    for found in LINKS.finditer(file.read_text(encoding="utf-8", errors="replace")):
        parser.feed(found[0])
    parser.close()
    return parser.hrefs


def expected_pages(docs: Path) -> dict[str, int]:
    """Every page that can be reached from the front page by links, with its size in bytes."""
    sizes = {FRONT_PAGE: (docs / FRONT_PAGE[1:]).stat().st_size}
    to_read = deque(sizes)
    while to_read:
        page = to_read.popleft()
        for target in targets_of(page, links_of(docs / page[1:]), host=""):
            file = docs / target[1:]
            if target not in sizes and file.is_file():
                sizes[target] = file.stat().st_size
                to_read.append(target)
    return sizes


# --- nginx ---------------------------------------------------------------------------------

NGINX_CONF = """\
daemon off;
worker_processes 1;
pid "{temp}/nginx.pid";
error_log "{temp}/error.log" notice;
{user}
events {{ worker_connections 1024; }}
http {{
    types {{ text/html html; text/css css; text/javascript js; text/plain txt; }}
    default_type application/octet-stream;
    client_body_temp_path "{temp}/body";
    proxy_temp_path "{temp}/proxy";
    fastcgi_temp_path "{temp}/fastcgi";
    uwsgi_temp_path "{temp}/uwsgi";
    scgi_temp_path "{temp}/scgi";
    log_format measured "$status $msec $request_time $request_uri";
    access_log "{temp}/access.log" measured;
    keepalive_timeout 65s;
    keepalive_requests 100000;
    {zones}
    server {{
        listen 127.0.0.1:{port};
        root "{docs}";
        location / {{
            {limits}
        }}
        {locations}
    }}
}}
"""

# nginx applies limit_rate between the buffers it sends, never after the last one, so that a page
# takes less time than its bytes at that rate. What two clients at a time really need is therefore
# measured (see two_streams_s) and not computed.
CONN_ZONES = "limit_conn_zone $binary_remote_addr zone=clients:1m;"
CONN_LIMITS = f"""\
limit_conn clients {CONNECTIONS};
            limit_conn_status 429;
            limit_conn_log_level info;
            limit_rate {BODY_BYTES_PER_S};"""

# With nodelay, a burst is served at once and what exceeds it is refused. Without it nginx holds the
# burst back to the rate instead; AutoThrottle sees that as latency and gets all of 526 pages with 0
# or 1 refusals. Neither reading gives the published 46, 133 and 85 pages (stock, stock-2,
# autothrottle) exactly, because a crawler that parses more slowly is refused less, but nodelay is
# the nearer: from 108, 155 and 220 upwards, against 129, 344 and 526.
REQ_ZONES = f"limit_req_zone $binary_remote_addr zone=clients:1m rate={REQUESTS_PER_S}r/s;"
REQ_LIMITS = f"""\
limit_req zone=clients burst={BURST} nodelay;
            limit_req_status 503;
            limit_req_log_level info;"""

RETRY_AFTER_LOCATION = """\
location @refused {
            add_header Retry-After 1 always;
            return 503;
        }"""


def nginx_conf(mode: str, temp: Path, docs: Path, port: int) -> str:
    limits = CONN_LIMITS if mode == "conn" else REQ_LIMITS
    locations = ""
    if mode == "req-retry-after":
        limits += "\n            error_page 503 @refused;"
        locations = RETRY_AFTER_LOCATION
    # As root, nginx would hand its worker to "nobody", who may not enter the temporary directory.
    user = f"user {pwd.getpwuid(0).pw_name};" if os.geteuid() == 0 else ""
    return NGINX_CONF.format(
        temp=temp,
        docs=docs,
        port=port,
        user=user,
        zones=CONN_ZONES if mode == "conn" else REQ_ZONES,
        limits=limits,
        locations=locations,
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def end_process(process: subprocess.Popen[bytes]) -> None:
    """Ask the process to end, then insist. It leads a process group of its own."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(PROCESS_END_TIMEOUT_S)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(PROCESS_END_TIMEOUT_S)


def wait_until_listening(process: subprocess.Popen[bytes], port: int, temp: Path) -> None:
    deadline = time.monotonic() + NGINX_START_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        # A connection that asks nothing leaves no line in the access log.
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.02)
    log = temp / "error.log"
    said = log.read_text(errors="replace")[-2000:] if log.exists() else "nothing"
    raise SetupError(f"nginx did not start; its error log says: {said}")


@contextmanager
def running_nginx(binary: str, mode: str, temp: Path, docs: Path) -> Iterator[int]:
    """An nginx of our own, with everything it writes in ``temp``; yields its port."""
    port = free_port()
    conf = temp / "nginx.conf"
    conf.write_text(nginx_conf(mode, temp, docs, port))
    process = subprocess.Popen(
        [binary, "-p", str(temp), "-e", str(temp / "error.log"), "-c", str(conf)],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_until_listening(process, port, temp)
        yield port
    finally:
        end_process(process)


# --- what nginx saw ------------------------------------------------------------------------


@dataclass(frozen=True)
class LogLine:
    status: int
    arrived_ms: int
    ended_ms: int


def read_access_log(file: Path) -> list[LogLine]:
    lines = []
    for text in file.read_text(errors="replace").splitlines():
        status, ended_s, lasted_s, _uri = text.split(" ", 3)
        # Both are whole milliseconds; as floats their difference would not be.
        ended_ms = int(ended_s.replace(".", ""))
        lines.append(LogLine(int(status), ended_ms - int(lasted_s.replace(".", "")), ended_ms))
    return lines


def peak_in_flight(lines: list[LogLine]) -> int:
    """The most requests that nginx was serving at one moment; a lower bound.

    nginx's clock ticks in milliseconds. Where one request ends in the millisecond in which
    another arrives, they are taken not to overlap. So the figure says much in mode ``conn``,
    where a page takes long, and little in the others, where nginx is done within the tick.
    """
    changes = [(line.arrived_ms, +1) for line in lines if line.ended_ms > line.arrived_ms]
    changes += [(line.ended_ms, -1) for line in lines if line.ended_ms > line.arrived_ms]
    # Requests that took no time, as most refusals, still come on top of what is being served.
    changes += [(line.arrived_ms, 0) for line in lines if line.ended_ms == line.arrived_ms]
    peak = in_flight = 0
    for _moment, change in sorted(changes):
        in_flight += change
        peak = max(peak, in_flight if change else in_flight + 1)
    return peak


def arrivals_after_first_refusal(lines: list[LogLine]) -> int:
    """How many requests arrived in the two seconds after the first refusal."""
    refused = [line for line in lines if line.status in REFUSAL_STATUSES]
    if not refused:
        return 0
    first = min(refused, key=lambda line: line.ended_ms)
    return sum(
        0 <= line.arrived_ms - first.ended_ms <= AFTER_REFUSAL_MS
        for line in lines
        if line is not first
    )


# --- one crawl, in a process of its own ----------------------------------------------------


class DocsSpider(scrapy.Spider):
    """Follows every link inside the site and notes each page that it is given."""

    name = "docs"

    def __init__(self, host: str, pages_file: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.host = host
        self.pages_file = Path(pages_file)
        self.asked = {FRONT_PAGE}

    def request_for(self, page: str) -> scrapy.Request:
        return scrapy.Request(f"http://{self.host}{quote(page)}", callback=self.parse)

    async def start(self) -> AsyncIterator[Any]:
        # Not start_urls: those skip the duplicate filter, and the front page would come twice.
        yield self.request_for(FRONT_PAGE)

    def parse(self, response: scrapy.http.Response, **kwargs: Any) -> Iterator[scrapy.Request]:
        page = unquote(urlsplit(response.url).path)
        if response.status == 200:
            # One line at a time, so that a crawl which is cut short still has a count.
            with self.pages_file.open("a") as file:
                file.write(f"{page}\n")
        if isinstance(response, HtmlResponse):
            # The index pages hold thousands of links to a few hundred pages. Dropping repeats here,
            # and not in Scrapy's duplicate filter, keeps the crawler from being too busy to load
            # the host at all.
            hrefs = response.css("a::attr(href)").getall()
            for target in targets_of(page, hrefs, self.host):
                if target not in self.asked:
                    self.asked.add(target)
                    yield self.request_for(target)


def crawl_here(contender: str, port: int, temp: Path) -> int:
    """What the child process does: one crawl with Scrapy's defaults and the contender's own."""
    settings = {
        "ROBOTSTXT_OBEY": False,
        "TELNETCONSOLE_ENABLED": False,
        "LOG_FILE": str(temp / "scrapy.log"),
        "LOG_LEVEL": "INFO",
        **CONTENDERS[contender],
    }
    process = CrawlerProcess(settings)
    process.crawl(DocsSpider, host=f"127.0.0.1:{port}", pages_file=str(temp / "pages.txt"))
    started = time.monotonic()
    process.start()
    (temp / "seconds.txt").write_text(str(time.monotonic() - started))
    return 1 if process.bootstrap_failed else 0


# --- measuring one contender ---------------------------------------------------------------


@dataclass(frozen=True)
class Site:
    nginx: str
    docs: Path
    pages: dict[str, int]

    def ideal_s(self, mode: str, temp: Path) -> float:
        """Seconds that nginx's limits leave to a crawler which uses all of them."""
        if mode == "conn":
            temp.mkdir()
            with running_nginx(self.nginx, mode, temp, self.docs) as port:
                return two_streams_s(port, list(self.pages))
        return len(self.pages) / REQUESTS_PER_S


def two_streams_s(port: int, pages: list[str]) -> float:
    """Seconds in which as many plain clients as nginx allows fetch every page between them."""
    left = deque(pages)

    def fetch() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        with suppress(IndexError):
            while True:
                connection.request("GET", left.popleft())
                response = connection.getresponse()
                response.read()
                if response.status != 200:
                    raise SetupError(f"nginx refused a plain client: {response.status}")
        connection.close()

    started = time.monotonic()
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        for stream in [pool.submit(fetch) for _ in range(CONNECTIONS)]:
            stream.result()
    return time.monotonic() - started


@dataclass(frozen=True)
class Result:
    contender: str
    pages: int
    asked: int
    refusals: int
    requests: int
    seconds: float
    peak: int
    after_refusal: int
    error: str | None = None


def run_child(command: list[str], temp: Path, timeout_s: float) -> tuple[float, str | None]:
    """Run a child process to its end, its output in ``temp``; its seconds, and what went wrong."""
    # A proxy of the environment would stand between the crawler and the loopback interface.
    environ = {key: value for key, value in os.environ.items() if "_proxy" not in key.lower()}
    error = None
    started = time.monotonic()
    with (temp / "output.log").open("wb") as output:
        process = subprocess.Popen(
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            if process.wait(timeout_s) != 0:
                said = (temp / "output.log").read_text(errors="replace").strip()
                error = f"exit status {process.returncode}: {said[-2000:]}"
        except subprocess.TimeoutExpired:
            error = f"cut short after {timeout_s:g} s"
        finally:
            seconds = time.monotonic() - started
            end_process(process)
    return seconds, error


def run_crawl(contender: str, port: int, temp: Path, timeout_s: float) -> tuple[float, str | None]:
    """Run the child process to its end; its seconds, and what went wrong, if anything."""
    command = [sys.executable, str(Path(__file__).resolve()), "--child", contender]
    command += ["--child-port", str(port), "--child-dir", str(temp)]
    seconds, error = run_child(command, temp, timeout_s)
    measured = temp / "seconds.txt"
    # The child's own figure leaves out the start of the interpreter.
    if error is None and measured.exists():
        seconds = float(measured.read_text())
    return seconds, error


def delivered_pages(temp: Path) -> set[str]:
    file = temp / "pages.txt"
    return set(file.read_text().splitlines()) if file.exists() else set()


def measure(contender: str, site: Site, mode: str, temp: Path, timeout_s: float) -> Result:
    temp.mkdir()
    # A fresh nginx each time: what one contender did must not count against the next.
    with running_nginx(site.nginx, mode, temp, site.docs) as port:
        seconds, error = run_crawl(contender, port, temp, timeout_s)
    lines = read_access_log(temp / "access.log")
    return Result(
        contender=contender,
        pages=len(delivered_pages(temp) & site.pages.keys()),
        asked=len(site.pages),
        refusals=sum(line.status in REFUSAL_STATUSES for line in lines),
        requests=len(lines),
        seconds=round(seconds, 1),
        peak=peak_in_flight(lines),
        after_refusal=arrivals_after_first_refusal(lines),
        error=error,
    )


# --- the verdict ---------------------------------------------------------------------------


def failures(result: Result, mode: str, ideal_s: float) -> list[str]:
    """The conditions that hostgate did not meet, in words; none if it kept its promise."""
    most_refusals, most_ideals = (5, 1.15) if mode == "conn" else (15, 4.0)
    failed = []
    if result.error is not None:
        failed.append(f"the crawl did not end well: {result.error}")
    if result.pages < result.asked:
        failed.append(f"{result.asked - result.pages} of {result.asked} pages were lost")
    if result.refusals > most_refusals:
        failed.append(f"{result.refusals} refusals, at most {most_refusals} allowed")
    if result.seconds >= most_ideals * ideal_s:
        failed.append(
            f"{result.seconds:.1f} s, not under {most_ideals:g} x ideal"
            f" = {most_ideals * ideal_s:.1f} s"
        )
    return failed


def table(results: list[Result]) -> str:
    header = (
        "contender",
        "pages",
        "refusals",
        "requests",
        "seconds",
        "peak",
        "2 s after refusal",
    )
    rows = [header]
    for result in results:
        rows.append(
            (
                result.contender,
                f"{result.pages} of {result.asked}",
                str(result.refusals),
                str(result.requests),
                f"{result.seconds:.1f}",
                str(result.peak),
                str(result.after_refusal),
            )
        )
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if index else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


# --- the command ---------------------------------------------------------------------------


def contender_names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in CONTENDERS]
    if unknown or not names:
        raise argparse.ArgumentTypeError(
            f"{', '.join(unknown) or 'nothing'}: choose from {', '.join(CONTENDERS)}"
        )
    return names


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Crawl the Python documentation behind a strict nginx and compare."
    )
    parser.add_argument("--mode", choices=MODES, default="conn", help="what nginx limits")
    parser.add_argument(
        "--only",
        type=contender_names,
        default=list(CONTENDERS),
        metavar="NAME,...",
        help=f"contenders to run: {', '.join(CONTENDERS)} (default: all)",
    )
    parser.add_argument("--docs", type=Path, metavar="DIR", help="serve this directory instead")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here too")
    parser.add_argument(
        "--timeout",
        type=float,
        default=400.0,
        metavar="SECONDS",
        help="cut a contender's crawl short after this long (default: 400)",
    )
    parser.add_argument("--keep", action="store_true", help="keep the logs and say where they are")
    # How this script starts itself for one crawl.
    parser.add_argument("--child", choices=CONTENDERS, help=argparse.SUPPRESS)
    parser.add_argument("--child-port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--child-dir", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def write_json(
    file: Path, mode: str, site: Site, ideal_s: float, results: list[Result], failed: list[str]
) -> None:
    figures = {
        "mode": mode,
        "scrapy": scrapy.__version__,
        "pages": len(site.pages),
        "bytes": sum(site.pages.values()),
        "ideal_s": round(ideal_s, 1),
        "results": [asdict(result) for result in results],
        "failures": failed,
    }
    file.write_text(json.dumps(figures, indent=2) + "\n")


def compare(options: argparse.Namespace, temp: Path) -> int:
    if "hostgate" in options.only and importlib.util.find_spec("scrapy_hostgate") is None:
        raise SetupError(
            f"scrapy_hostgate is not installed for {sys.executable}: install it, or leave it out "
            "with --only stock,stock-2,autothrottle"
        )
    nginx, docs = ensure_site(options.docs)
    site = Site(nginx, docs, expected_pages(docs))
    ideal_s = site.ideal_s(options.mode, temp / "ideal")
    print(
        f"{len(site.pages)} pages, {sum(site.pages.values()) / 1e6:.1f} MB, in {docs}\n"
        f"mode {options.mode}, Scrapy {scrapy.__version__}, ideal {ideal_s:.1f} s",
        flush=True,
    )
    results = []
    for contender in options.only:
        print(f"{contender} ...", flush=True)
        result = measure(contender, site, options.mode, temp / contender, options.timeout)
        if result.error is not None:
            print(f"{contender}: {result.error}", file=sys.stderr, flush=True)
        results.append(result)
    print(f"\n{table(results)}\n")
    failed = [
        failure
        for result in results
        if result.contender == "hostgate"
        for failure in failures(result, options.mode, ideal_s)
    ]
    for failure in failed:
        print(f"FAILED: hostgate: {failure}")
    if options.json is not None:
        write_json(options.json, options.mode, site, ideal_s, results, failed)
    return 1 if failed else 0


def end_on_sigterm(_number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + signal.SIGTERM)


def main() -> int:
    options = arguments()
    if options.child is not None:
        return crawl_here(options.child, options.child_port, options.child_dir)
    # So that being told to end still ends nginx and the crawl, and clears up.
    signal.signal(signal.SIGTERM, end_on_sigterm)
    temp = Path(tempfile.mkdtemp(prefix="realsite-"))
    try:
        return compare(options, temp)
    except SetupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    finally:
        if options.keep:
            print(f"logs kept in {temp}")
        else:
            shutil.rmtree(temp, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
