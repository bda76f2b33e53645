"""Ordered messages in Python: a broker, a name server and a client that speak RocketMQ's protocol.

The public names are loaded when they are first used, so that `import inorder` costs nothing and a
client does not load the broker.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from inorder.config import BrokerConfig as BrokerConfig
    from inorder.config import ClientConfig as ClientConfig
    from inorder.config import NameServerConfig as NameServerConfig
    from inorder.config import NetConfig as NetConfig
    from inorder.config import StoreConfig as StoreConfig
    from inorder.embedded import Embedded as Embedded
    from inorder.errors import BrokerError as BrokerError
    from inorder.errors import ConfigError as ConfigError
    from inorder.errors import InorderError as InorderError
    from inorder.errors import TransportError as TransportError
    from inorder.model import Message as Message
    from inorder.model import ReceivedMessage as ReceivedMessage
    from inorder.model import SendReceipt as SendReceipt
    from inorder.model import TopicQueue as TopicQueue
    from inorder.sync.producer import Producer as Producer
    from inorder.sync.pullconsumer import PullConsumer as PullConsumer

# Public name -> the module that defines it.
_PUBLIC = {
    "BrokerConfig": "inorder.config",
    "BrokerError": "inorder.errors",
    "ClientConfig": "inorder.config",
    "ConfigError": "inorder.errors",
    "Embedded": "inorder.embedded",
    "InorderError": "inorder.errors",
    "Message": "inorder.model",
    "NameServerConfig": "inorder.config",
    "NetConfig": "inorder.config",
    "Producer": "inorder.sync.producer",
    "PullConsumer": "inorder.sync.pullconsumer",
    "ReceivedMessage": "inorder.model",
    "SendReceipt": "inorder.model",
    "StoreConfig": "inorder.config",
    "TopicQueue": "inorder.model",
    "TransportError": "inorder.errors",
}

__all__ = [*sorted(_PUBLIC), "__version__"]  # noqa: PLE0604  # _PUBLIC holds strings only


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'inorder' has no attribute {name!r}")
    value = getattr(importlib.import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
