"""The example project with one queue for all its processes, by scrapy-redis.

``SCRAPY_PROJECT=queue scrapy crawl pages -a urls=...`` in any number of terminals or machines, with
HOSTGATE_FLEET_URL in the environment of each, is one crawl: one queue, one bound of each host.
"""

from __future__ import annotations

from demo.settings import *  # noqa: F403
from demo.settings import HOSTGATE_FLEET_URL

REDIS_URL = HOSTGATE_FLEET_URL
SCHEDULER = "demo.shared_queue.SharedScheduler"
# Scrapy's own would know only what this process has seen; scrapy-redis's scheduler needs it named.
DUPEFILTER_CLASS = "scrapy_redis.dupefilter.RFPDupeFilter"

# The queue outlives each single process: without this, the first to end would empty it for all.
SCHEDULER_PERSIST = True
# Seconds that the queue has to stay empty before a process ends. Pages that another one still has
# in flight may lead to more.
SCHEDULER_IDLE_BEFORE_CLOSE = 3
# What a process has taken out of the queue, nobody else can crawl, and what it holds when it is
# killed is lost. So it takes hardly more than the host lets it have in flight.
CONCURRENT_REQUESTS = 4
