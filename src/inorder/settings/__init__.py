"""Loading settings: defaults < file < environment < flags, each value with its origin.

The settings themselves are the dataclasses of `inorder.config`. A file is TOML with the tables
`[broker]` and `[nameserver]`, or a RocketMQ properties file (`broker.conf`). Every name may be ours
(`store.flush_interval_ms`) or RocketMQ's (`flushIntervalCommitLog`). The environment is an argument
like the rest: only the command line reads the real one.
"""

from inorder.settings.load import Loaded, load, load_with_origins
from inorder.settings.values import Setting, Value, catalog

__all__ = ["Loaded", "Setting", "Value", "catalog", "load", "load_with_origins"]
