"""Commands of this project; Scrapy finds them through ``COMMANDS_MODULE``."""
