"""One bound for every process that crawls a host."""
