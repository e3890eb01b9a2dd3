"""A controller's whole state as plain numbers, from which an equal one can be made.

Unlike its ``export()``, which keeps what is worth knowing in another process, this keeps every
sample, so that what follows is decided alike. Pure. What is not there is as in a new controller, so
a host of which nothing is known takes no room, and infinite times (which JSON cannot hold) are
never written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from scrapy_hostgate.controller import (
    BASELINE_WINDOW,
    RECENT_WINDOW,
    Controller,
    Law,
    SortedWindow,
    Window,
)

_WINDOWS: dict[str, Callable[[], Window]] = {
    "_window": lambda: SortedWindow(BASELINE_WINDOW),
    "_recent": lambda: Window(RECENT_WINDOW),
}


def dump(controller: Controller) -> dict[str, Any]:
    """All of ``controller`` but its law: numbers, flags and lists of numbers by name."""
    new = Controller(controller.law, 0.0)
    state: dict[str, Any] = {}
    for name in Controller.__slots__:
        value = getattr(controller, name)
        if isinstance(value, Window):
            if len(value):
                state[name.lstrip("_")] = value.in_order()
        elif name != "law" and value != getattr(new, name):
            state[name.lstrip("_")] = value
    return state


def load(law: Law, state: Mapping[str, Any]) -> Controller:
    """A controller that decides as the dumped one would have. ``KeyError`` for unknown names."""
    controller = Controller(law, 0.0)
    names = {name.lstrip("_"): name for name in Controller.__slots__}
    for key, value in state.items():
        name = names[key]
        if name in _WINDOWS:
            window = _WINDOWS[name]()
            for number in value:
                window.push(number)
            value = window
        setattr(controller, name, value)
    return controller
