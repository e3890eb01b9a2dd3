"""A gate under any order of events, for as many examples as wanted.

    python benchmarks/interleavings.py --examples 1000000

Each example is a gate with settings of its own and up to 40 moves at random: arrivals, ends of
every kind, cancellations, refusals, pauses, quotas, resizes, delays, a fleet that says no, an event
loop that stands still. What must hold is checked after every move (see ``tests/interleavings.py``).
The same ``--first`` gives the same examples. Exit status 1 at the first one that fails, which
``--first SEED --examples 1`` repeats. A million take about ten minutes of one core.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from interleavings import walk  # noqa: E402

TOLD_EVERY = 50_000


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--examples", type=int, default=1_000_000, metavar="N")
    options.add_argument("--first", type=int, default=0, metavar="SEED")
    chosen = options.parse_args()
    began, moves, departures = time.process_time(), 0, 0
    for done, seed in enumerate(range(chosen.first, chosen.first + chosen.examples), 1):
        try:
            world = walk(seed)
        except Exception:
            traceback.print_exc()
            print(f"example {seed} fails")
            return 1
        moves += world.checks
        departures += len(world.left_at)
        if done % TOLD_EVERY == 0 or done == chosen.examples:
            seconds = time.process_time() - began
            print(
                f"{done} examples, {moves} moves, {departures} departures, {seconds:.0f} s of CPU",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
