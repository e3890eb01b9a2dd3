"""The spiders of the example project: ``demo`` and ``pages``."""
