"""Signals of scrapy_hostgate, for ``crawler.signals.connect``."""

from __future__ import annotations

hostgate_limit_changed = object()
"""Sent after each change of a limit, a pause or a spacing, and after each refusal that found the
limit at 1 already, with ``event`` (a :class:`~scrapy_hostgate.observe.events.GateEvent`) and
``spider``."""
