"""Who looks at a running crawl: the live view, Prometheus and the telnet console."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from scrapy_hostgate.observe.beacon import Beacon
from scrapy_hostgate.observe.board import Board
from scrapy_hostgate.observe.table import text_table
from scrapy_hostgate.observing import ObservingSettings

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

    from scrapy_hostgate.observe.prometheus import MetricsServer

logger = logging.getLogger("scrapy_hostgate")


class Views:
    """Opened with the spider and closed with the engine. None of them may end a crawl."""

    def __init__(
        self, crawler: Crawler, observing: ObservingSettings, board: Callable[[], Board]
    ) -> None:
        self._crawler = crawler
        self._observing = observing
        self._board = board
        self._beacon: Beacon | None = None
        self._metrics: MetricsServer | None = None
        settings = crawler.settings
        if settings.getbool("TELNETCONSOLE_ENABLED") and settings.getbool(
            "TWISTED_REACTOR_ENABLED", True
        ):
            self._connect_telnet()

    def start(self) -> None:
        if self._observing.watch:
            self._light_beacon()
        if self._observing.prometheus_port is not None:
            self._serve_metrics(self._observing.prometheus_host, self._observing.prometheus_port)

    def tick(self) -> None:
        """A second has passed."""
        if self._beacon is not None:
            try:
                self._beacon.tick()
            except OSError as error:
                self._lose_beacon(error)

    def stop(self) -> None:
        if self._beacon is not None:
            self._beacon.put_out()
            self._beacon = None
        if self._metrics is not None:
            self._metrics.stop()
            self._metrics = None

    def _light_beacon(self) -> None:
        self._beacon = Beacon(self._board)
        try:
            self._beacon.light()
        except OSError as error:
            self._lose_beacon(error)

    def _lose_beacon(self, error: OSError) -> None:
        # Not a warning: nobody asked for it.
        logger.info(
            '"scrapy hostgate watch" does not see this crawl: %(error)s',
            {"error": error},
            extra={"spider": self._crawler.spider},
        )
        if self._beacon is not None:
            self._beacon.put_out()
            self._beacon = None

    def _serve_metrics(self, address: str, port: int) -> None:
        try:
            from scrapy_hostgate.observe.prometheus import MetricsServer
        except ImportError:
            logger.error(
                "HOSTGATE_PROMETHEUS_PORT takes the extra scrapy-hostgate[prometheus]: "
                "the crawl goes on without metrics",
                extra={"spider": self._crawler.spider},
            )
            return
        try:
            self._metrics = MetricsServer(self._board, address, port)
        except OSError as error:
            logger.error(
                "No metrics on %(address)s:%(port)d (%(error)s): the crawl goes on without them",
                {"address": address, "port": port, "error": error.strerror or error},
                extra={"spider": self._crawler.spider},
            )
            return
        logger.info(
            "Metrics for Prometheus on http://%(address)s:%(port)d/metrics",
            {
                "address": f"[{address}]" if ":" in address else address,
                "port": self._metrics.port,
            },
            extra={"spider": self._crawler.spider},
        )

    def _connect_telnet(self) -> None:
        # Twisted's conch is no light thing to import, and a crawl without the console need not.
        from scrapy.extensions.telnet import update_telnet_vars

        self._crawler.signals.connect(self._add_telnet_name, signal=update_telnet_vars)

    def _add_telnet_name(self, telnet_vars: dict[str, Any]) -> None:
        telnet_vars["hostgate"] = LiveTable(self._board)


class LiveTable:
    """Shows the hosts of this moment wherever it is printed, as a Python console does."""

    def __init__(self, board: Callable[[], Board]) -> None:
        self._board = board

    def __repr__(self) -> str:
        return text_table(self._board(), most=40)
