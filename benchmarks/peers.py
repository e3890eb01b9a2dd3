"""Six clients against the same hosts: who gets every page, and what does it cost the hosts?

    python benchmarks/peers.py [--quick] [--runs 3] [--scenario NAME,...] [--client NAME,...]
                               [--timeout 240] [--json FILE]

Scrapy as it is, with AutoThrottle, with the settings of its project template; Crawlee for Python
with its ThrottlingRequestManager (``pip install 'scrapy-hostgate[bench]'``); and scrapy_hostgate.
Every crawl is a process of its own against freshly started hosts on the loopback interface, whose
record is what a client is judged by. Printed are medians over the runs.

Exit status: 0 if scrapy_hostgate got every page, no host saw more than four at a time, and in the
broad scenario (not with ``--quick``) the add-on got all healthy pages within 1.2 times the time of
the same crawl without the sick hosts, in which it may have as many in flight as the tarpits leave
over; 1 if not.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import scrapy
from peers_clients import CLIENTS, missing
from peers_scenarios import Scenario, scenarios

import scrapy_hostgate

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "example_project"))

from demo.origin import start_process  # noqa: E402
from demo.origin_record import HostRecord  # noqa: E402

OURS = ("hostgate", "hostgate-addon")
MOST_AT_A_TIME = 4
HEALTHY_WITHIN = 1.2


@dataclass(frozen=True)
class Figures:
    """What the hosts saw of one crawl. Times are seconds.

    ``peak`` is the most in flight at any one host; ``rush`` is how many requests came to hosts in
    the 2 s after they had first refused. ``wall_s`` and ``healthy_s`` count from the first arrival
    of all to the last end of any request, and of a page of a healthy host. ``failed`` says how the
    client ended if not by itself and well.
    """

    scenario: str
    client: str
    pages: float
    asked: int
    wall_s: float
    peak: float
    refusals: float
    rush: float
    healthy_s: float
    failed: str = ""


def measure(scenario: Scenario, client: str, timeout_s: float) -> Figures:
    """Run one crawl, and read the hosts' record of it."""
    with start_process(scenario.origin_config()) as origin:
        job = {
            "urls": scenario.urls(origin.port),
            "hosts": list(scenario.hosts),
            "in_all": scenario.in_all,
        }
        failed = _crawl(client, job, timeout_s)
        seen = origin.records()
    records = {host: seen.get(host, HostRecord(host)) for host in scenario.hosts}
    return judge(scenario, client, records, failed)


def _crawl(client: str, job: dict[str, Any], timeout_s: float) -> str:
    """Run a client to its end; say how it failed, if it did."""
    try:
        process = subprocess.run(
            [sys.executable, str(HERE / "peers_clients.py"), client],
            input=json.dumps(job),
            text=True,
            capture_output=True,
            timeout=timeout_s,
            # A proxy of the environment would stand between the client and the hosts.
            env={k: v for k, v in os.environ.items() if "_proxy" not in k.lower()},
        )
    except subprocess.TimeoutExpired:
        return "timed out"
    if process.returncode:
        print(process.stderr, file=sys.stderr)
        return f"exit status {process.returncode}"
    return ""


def judge(
    scenario: Scenario, client: str, records: dict[str, HostRecord], failed: str = ""
) -> Figures:
    """The figures of one crawl, from the hosts' record."""
    arrivals = [arrival for record in records.values() for arrival in record.arrivals]
    began = min((arrival.at for arrival in arrivals), default=0.0)
    rush = 0
    for record in records.values():
        first = record.first_refusal_at
        rush += 0 if first is None else len(record.arrivals_between(first, first + 2))
    return Figures(
        scenario=scenario.name,
        client=client,
        pages=sum(len(r.pages() & set(scenario.paths(host))) for host, r in records.items()),
        asked=scenario.asked,
        wall_s=max((a.ended or a.at for a in arrivals), default=began) - began,
        peak=max(record.peak for record in records.values()),
        refusals=sum(record.refusals for record in records.values()),
        rush=rush,
        healthy_s=max(
            (
                arrival.ended or arrival.at
                for host, record in records.items()
                if scenario.hosts[host].healthy
                for arrival in record.arrivals
                if arrival.status == 200
            ),
            default=began,
        )
        - began,
        failed=failed,
    )


def median(runs: list[Figures]) -> Figures:
    """The median of each figure over several runs of the same crawl."""
    first = runs[0]
    middle = {
        name: statistics.median(getattr(run, name) for run in runs)
        for name in ("pages", "wall_s", "peak", "refusals", "rush", "healthy_s")
    }
    return Figures(
        scenario=first.scenario,
        client=first.client,
        asked=first.asked,
        failed=", ".join(sorted({run.failed for run in runs if run.failed})),
        **middle,
    )


def table(rows: list[Figures], chosen: dict[str, Scenario]) -> str:
    """Markdown, so that it can be pasted."""
    lines = [
        "| scenario | client | pages | wall | peak | refusals | in the 2 s after the first |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, group in groupby(rows, key=lambda row: row.scenario):
        what = f"{name}: {chosen[name].what}"
        for row in group:
            late = f" ({row.failed})" if row.failed else ""
            rush = f"{row.rush:g}" if row.refusals else "–"
            lines.append(
                f"| {what} | {CLIENTS[row.client]} | {row.pages:g} of {row.asked}{late} "
                f"| {row.wall_s:.1f} s | {row.peak:g} | {row.refusals:g} | {rush} |"
            )
            what = ""
    return "\n".join(lines)


def failures(runs: list[Figures]) -> list[str]:
    """What scrapy_hostgate did not keep, in any run, in words."""
    failed = []
    for run in runs:
        if run.client not in OURS:
            continue
        where = f"{CLIENTS[run.client]}, {run.scenario}"
        if run.failed:
            failed.append(f"{where}: {run.failed}")
        if run.pages < run.asked:
            failed.append(f"{where}: {run.asked - run.pages:g} pages lost")
        if run.peak > MOST_AT_A_TIME:
            failed.append(f"{where}: a host saw {run.peak:g} at a time")
    return failed


def slow(client: str) -> bool:
    """Whether a client waits nearly all of the time, whatever the host does."""
    return client == "template"


def lengthened(runs: list[Figures], alone: list[Figures]) -> float:
    """By what sick hosts lengthen the healthy ones' crawl: the median over pairs of runs."""
    return statistics.median(
        run.healthy_s / reference.healthy_s if reference.healthy_s else math.inf
        for run, reference in zip(runs, alone)
    )


def run_once(
    chosen: list[Scenario], clients: list[str], timeout_s: float
) -> tuple[list[Figures], list[Figures]]:
    """Every crawl once; and the reference crawls, without sick hosts, of the broad scenario."""
    single = [scenario for scenario in chosen if len(scenario.hosts) == 1]
    # One request a second costs no CPU to speak of and takes half of all the time, so those crawls
    # run beside the others. More at once would slow the fast clients down, to the hosts' advantage.
    lanes = [
        [(scenario, client) for client in clients for scenario in single if slow(client) is lane]
        for lane in (True, False)
    ]
    with ThreadPoolExecutor(len(lanes)) as pool:
        measured = pool.map(lambda lane: [measure(*pair, timeout_s) for pair in lane], lanes)
        runs = [figures for lane in measured for figures in lane]
    alone = []
    for scenario in chosen:
        if scenario in single:
            continue
        for client in clients:
            runs.append(measure(scenario, client, timeout_s))
            if client == OURS[-1]:
                alone.append(measure(scenario.healthy_only(), client, timeout_s))
    return runs, alone


def main() -> int:
    options = _options()
    for client in options.clients:
        if lacks := missing(client):
            print(f"{CLIENTS[client]} is left out: it takes {lacks}")
    clients = [client for client in options.clients if not missing(client)]
    runs: list[Figures] = []
    alone: list[Figures] = []
    started, begun = time.monotonic(), os.getloadavg()
    for number in range(options.runs):
        more, references = run_once(list(options.scenarios.values()), clients, options.timeout)
        runs += more
        alone += references
        took = time.monotonic() - started
        print(f"run {number + 1} of {options.runs} done after {took:.0f} s", file=sys.stderr)
    rows = [
        median([run for run in runs if (run.scenario, run.client) == (scenario, client)])
        for scenario in options.scenarios
        for client in clients
    ]
    load = f"load {begun[0]:.1f} before, {os.getloadavg()[0]:.1f} after"
    print(f"{_versions()}; medians of {options.runs}; {os.cpu_count()} cores, {load}\n")
    print(table(rows, options.scenarios))
    if options.json:
        told = [asdict(run) for run in runs + alone]
        options.json.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    failed = failures(runs + alone)
    if alone:
        ours = [run for run in runs if (run.scenario, run.client) == ("broad", OURS[-1])]
        ratio = lengthened(ours, alone)
        print(
            f"\nbroad: all healthy pages after {median(ours).healthy_s:.1f} s, without the sick "
            f"hosts ({alone[0].scenario}) after {median(alone).healthy_s:.1f} s: {ratio:.2f} times "
            "as long"
        )
        # A second or two of crawling is too short to tell.
        if ratio > HEALTHY_WITHIN and not options.quick:
            failed.append(f"broad: {ratio:.2f} times as long, more than {HEALTHY_WITHIN}")
    for failure in failed:
        print(f"FAILED: {failure}")
    return 1 if failed else 0


def _versions() -> str:
    versions = [f"Scrapy {scrapy.__version__}", f"scrapy_hostgate {scrapy_hostgate.__version__}"]
    if not missing("crawlee"):
        import crawlee

        versions.append(f"Crawlee {crawlee.__version__}")
    python = ".".join(map(str, sys.version_info[:3]))
    return f"{', '.join(versions)}, Python {python}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Six clients against the same hosts.")
    parser.add_argument("--quick", action="store_true", help="fewer pages, shorter trouble, 1 run")
    parser.add_argument("--runs", type=int, help="how often each crawl is run (3)")
    parser.add_argument("--scenario", help="by name, with commas between (all)")
    parser.add_argument("--client", default=",".join(CLIENTS), help="by name (all)")
    parser.add_argument("--timeout", type=float, default=240, help="seconds for one crawl (240)")
    parser.add_argument("--json", type=Path, help="write the figures of each run here too")
    options = parser.parse_args()
    if options.runs is None:
        options.runs = 1 if options.quick else 3
    known = scenarios(quick=options.quick)
    names = options.scenario.split(",") if options.scenario else list(known)
    options.clients = list(dict.fromkeys(options.client.split(",")))
    for flag, given, allowed in (
        ("--scenario", names, known),
        ("--client", options.clients, CLIENTS),
    ):
        if unknown := [name for name in given if name not in allowed]:
            parser.error(f"{flag} {', '.join(unknown)}: choose from {', '.join(allowed)}")
    if options.runs < 1 or options.timeout <= 0:
        parser.error("--runs must be 1 or more, --timeout more than 0")
    options.scenarios = {name: known[name] for name in names}
    return options


if __name__ == "__main__":
    sys.exit(main())
