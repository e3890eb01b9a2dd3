"""``scrapy crawl`` as usual, with an exit status and with arguments checked before the start.

Scrapy's own ends with status 0 whatever a spider thinks of its crawl, and answers a wrong spider
argument with a traceback.
"""

from __future__ import annotations

import argparse

from scrapy.commands import crawl
from scrapy.exceptions import UsageError


class Command(crawl.Command):
    """What a spider class may add, both optional.

    ``check_arguments(**arguments)``: a class method that raises ``ValueError`` for a bad argument.
    ``exitcode``: an attribute of the spider, read when the crawl has ended.
    """

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        if len(args) != 1:
            super().run(args, opts)  # which says what is wrong with that
            return
        assert self.crawler_process is not None
        crawler = self.crawler_process.create_crawler(args[0])
        check_arguments = getattr(crawler.spidercls, "check_arguments", None)
        if check_arguments is not None:
            try:
                check_arguments(**opts.spargs)
            except ValueError as error:
                raise UsageError(str(error), print_help=False) from error
        self.crawler_process.crawl(crawler, **opts.spargs)
        self.crawler_process.start()
        if self.crawler_process.bootstrap_failed:
            self.exitcode = 1
        else:
            self.exitcode = getattr(crawler.spider, "exitcode", 0)
