"""``scrapy hostgate``: looks at crawls, those that run and those that are over."""

from __future__ import annotations

import argparse
from typing import ClassVar

from scrapy.commands import ScrapyCommand
from scrapy.exceptions import UsageError

from scrapy_hostgate.commands import fleet, report, watch

SUBCOMMANDS = {"watch": watch, "report": report, "fleet": fleet}
"""Modules by name, each with ``HELP``, ``add_arguments(parser)``, and ``run(options)`` that returns
the exit status."""


class HostgateCommand(ScrapyCommand):
    """Hands over to a subcommand."""

    requires_project = False
    requires_crawler_process = False
    default_settings: ClassVar[dict[str, object]] = {"LOG_ENABLED": False}

    def syntax(self) -> str:
        return f"{{{'|'.join(SUBCOMMANDS)}}} [options]"

    def short_desc(self) -> str:
        return "Look at the hosts of a crawl that runs, of one that is over, or of a fleet"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        subparsers = parser.add_subparsers(dest="subcommand", metavar="|".join(SUBCOMMANDS))
        for name, module in SUBCOMMANDS.items():
            module.add_arguments(
                subparsers.add_parser(name, help=module.HELP, description=module.HELP)
            )

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        if opts.subcommand is None:
            raise UsageError(f"which one? There are: {', '.join(SUBCOMMANDS)}")
        if args:
            raise UsageError(f"what does {args[0]!r} mean?")
        self.exitcode = SUBCOMMANDS[opts.subcommand].run(opts)
