"""Settings of the example project. Only the first one below is needed to switch the gate on."""

from __future__ import annotations

import logging
import os
from typing import Any

# This one line is all that an existing project needs. From here on every host starts with two
# requests in flight, and how well it answers decides whether that becomes one, or up to four.
# 1000 makes it the innermost middleware of all, which it has to be.
DOWNLOADER_MIDDLEWARES = {"scrapy_hostgate.HostGateMiddleware": 1000}

# Hosts of which you know more than the defaults do. An entry that asks for more than the project's
# own numbers needs a reason, so that whoever reads this later knows why; an entry that asks for
# less needs none, e.g. {"concurrency": 1, "rate": 0.5} for one request at a time and one departure
# every two seconds. "*.example.org" stands for every host below example.org.
HOSTGATE_HOSTS: dict[str, dict[str, Any]] = {
    # A host of the demo. The claim is wrong, and the demo shows what happens then.
    "127.0.0.12": {"concurrency": 4, "reason": "its owner said that it bears four at a time"},
}

# Where the processes of a fleet meet, e.g. redis://127.0.0.1:6379/0; not set: each for itself. It
# comes from the environment because a command line, where others can read it, is no place for a
# password.
HOSTGATE_FLEET_URL = os.environ.get("HOSTGATE_FLEET_URL", "")

# Who you are and where a host's owner can complain. Put your own page here before you crawl.
USER_AGENT = "hostgate-demo (+https://example.org/bot)"
ROBOTSTXT_OBEY = True

# ---- Nothing below this line has to do with the gate ---------------------------------------------

BOT_NAME = "demo"
SPIDER_MODULES = ["demo.spiders"]
NEWSPIDER_MODULE = "demo.spiders"
COMMANDS_MODULE = "demo.commands"  # "scrapy crawl" with an exit status, and "scrapy fleet"

# At INFO the gate says one line for every change of a limit. Scrapy says some forty about its own
# start and end, among which those would be lost: delete the loop to see them. Warnings and errors
# are not hidden.
LOG_LEVEL = "INFO"
LOG_FORMAT = "%(asctime)s %(levelname)s: %(message)s"
LOG_DATEFORMAT = "%H:%M:%S"
LOG_VERSIONS: list[str] = []
STATS_DUMP = False
TELNETCONSOLE_ENABLED = False
REMOTE_CONTROL_ENABLED = False  # the like of it since Scrapy 2.19; unknown to older releases


def _worth_a_line(record: logging.LogRecord) -> bool:
    # A Ctrl-C is confirmed by the logger that also lists the overridden settings.
    return record.levelno >= logging.WARNING or "Received" in str(record.msg)


# Filters, because Scrapy's own set-up of logging puts every level back.
for _name in ("addons", "core.engine", "crawler", "middleware"):
    logging.getLogger(f"scrapy.{_name}").addFilter(_worth_a_line)
