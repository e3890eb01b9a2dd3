"""A controller's state as numbers, and the controller that is made of them."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from scrapy_hostgate.checkpoint import dump, load
from scrapy_hostgate.controller import Controller, Law
from scrapy_hostgate.outcome import Outcome, Sample

LAW = Law(start=2, ceiling=4, recovery_delay_s=5.0)
STEPS = st.lists(
    st.tuples(
        st.sampled_from([*[Outcome.OK] * 12, Outcome.SLOW, Outcome.REFUSED, Outcome.NEUTRAL]),
        st.floats(0.001, 20.0),
        st.integers(1, 4),
        st.floats(0.0, 20.0),
        st.booleans(),
    ),
    max_size=60,
)


def run(controller: Controller, steps: list[tuple[Outcome, float, int, float, bool]], now: float):
    """Feed it; return what it decided and when it ended."""
    decisions = []
    for outcome, latency_s, in_flight, gap_s, trusted in steps:
        now += gap_s
        sample = Sample(outcome, latency_s if trusted else None, controller.epoch, in_flight)
        if outcome is Outcome.OK and not trusted:
            decisions.append(controller.observe_served(sample, now, paused=False))
        else:
            decisions.append(controller.observe(sample, now))
    return decisions, now


def test_a_new_controller_takes_no_room() -> None:
    """Of a host that nothing is known of only its beginning is kept."""
    assert dump(Controller(LAW, 7.0)) == {"changed_at": 7.0, "baseline_at": 7.0}


@settings(max_examples=30, deadline=None)
@given(STEPS, STEPS)
def test_what_is_loaded_decides_as_what_was_dumped(
    before: list[tuple[Outcome, float, int, float, bool]],
    after: list[tuple[Outcome, float, int, float, bool]],
) -> None:
    """Wherever a history is cut, and even through JSON: the rest of it goes the same way."""
    controller = Controller(LAW, 0.0)
    _, now = run(controller, before, 0.0)
    again = load(LAW, json.loads(json.dumps(dump(controller), allow_nan=False)))
    assert run(again, after, now) == run(controller, after, now)
    assert dump(again) == dump(controller)
