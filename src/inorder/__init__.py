"""Ordered messages in Python: a broker, a name server and a client that speak RocketMQ's protocol.

The public names are loaded when they are first used, so that `import inorder` costs nothing and a
client does not load the broker.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from inorder.client.consume.hooks import HandleContext as HandleContext
    from inorder.client.consume.rules.assignment import Average as Average
    from inorder.client.consume.rules.assignment import AverageByCircle as AverageByCircle
    from inorder.client.consume.rules.assignment import ByConfig as ByConfig
    from inorder.client.consume.rules.assignment import ByMachineRoom as ByMachineRoom
    from inorder.client.consume.rules.assignment import ConsistentHash as ConsistentHash
    from inorder.client.consume.rules.assignment import MachineRoomNearby as MachineRoomNearby
    from inorder.client.consume.rules.outcomes import Block as Block
    from inorder.client.consume.rules.outcomes import DeadLetter as DeadLetter
    from inorder.client.consume.rules.outcomes import Handled as Handled
    from inorder.client.consume.rules.outcomes import Outcome as Outcome
    from inorder.client.consume.rules.outcomes import Park as Park
    from inorder.client.consume.rules.outcomes import Reject as Reject
    from inorder.client.consume.rules.outcomes import Reply as Reply
    from inorder.client.consume.rules.outcomes import Retry as Retry
    from inorder.client.consume.rules.outcomes import ReturnType as ReturnType
    from inorder.config import BrokerConfig as BrokerConfig
    from inorder.config import ClientConfig as ClientConfig
    from inorder.config import ConsumerConfig as ConsumerConfig
    from inorder.config import NameServerConfig as NameServerConfig
    from inorder.config import NetConfig as NetConfig
    from inorder.config import StoreConfig as StoreConfig
    from inorder.credentials import Credentials as Credentials
    from inorder.embedded import Embedded as Embedded
    from inorder.errors import AccessDenied as AccessDenied
    from inorder.errors import BrokerError as BrokerError
    from inorder.errors import ConfigError as ConfigError
    from inorder.errors import InorderError as InorderError
    from inorder.errors import OutcomeUnknown as OutcomeUnknown
    from inorder.errors import TransportError as TransportError
    from inorder.model import Fence as Fence
    from inorder.model import GroupConfig as GroupConfig
    from inorder.model import Message as Message
    from inorder.model import ReceivedMessage as ReceivedMessage
    from inorder.model import SendReceipt as SendReceipt
    from inorder.model import SendStatus as SendStatus
    from inorder.model import TopicQueue as TopicQueue
    from inorder.model import TransactionReceipt as TransactionReceipt
    from inorder.model import TransactionState as TransactionState
    from inorder.sync.admin import Admin as Admin
    from inorder.sync.consumer import Consumer as Consumer
    from inorder.sync.producer import Producer as Producer
    from inorder.sync.pullconsumer import PullConsumer as PullConsumer

# Public name -> the module that defines it.
_PUBLIC = {
    "AccessDenied": "inorder.errors",
    "Admin": "inorder.sync.admin",
    "Average": "inorder.client.consume.rules.assignment",
    "AverageByCircle": "inorder.client.consume.rules.assignment",
    "Block": "inorder.client.consume.rules.outcomes",
    "BrokerConfig": "inorder.config",
    "BrokerError": "inorder.errors",
    "ByConfig": "inorder.client.consume.rules.assignment",
    "ByMachineRoom": "inorder.client.consume.rules.assignment",
    "ClientConfig": "inorder.config",
    "ConfigError": "inorder.errors",
    "ConsistentHash": "inorder.client.consume.rules.assignment",
    "Consumer": "inorder.sync.consumer",
    "ConsumerConfig": "inorder.config",
    "Credentials": "inorder.credentials",
    "DeadLetter": "inorder.client.consume.rules.outcomes",
    "Embedded": "inorder.embedded",
    "Fence": "inorder.model",
    "GroupConfig": "inorder.model",
    "HandleContext": "inorder.client.consume.hooks",
    "Handled": "inorder.client.consume.rules.outcomes",
    "InorderError": "inorder.errors",
    "MachineRoomNearby": "inorder.client.consume.rules.assignment",
    "Message": "inorder.model",
    "NameServerConfig": "inorder.config",
    "NetConfig": "inorder.config",
    "Outcome": "inorder.client.consume.rules.outcomes",
    "OutcomeUnknown": "inorder.errors",
    "Park": "inorder.client.consume.rules.outcomes",
    "Producer": "inorder.sync.producer",
    "PullConsumer": "inorder.sync.pullconsumer",
    "ReceivedMessage": "inorder.model",
    "Reject": "inorder.client.consume.rules.outcomes",
    "Reply": "inorder.client.consume.rules.outcomes",
    "Retry": "inorder.client.consume.rules.outcomes",
    "ReturnType": "inorder.client.consume.rules.outcomes",
    "SendReceipt": "inorder.model",
    "SendStatus": "inorder.model",
    "StoreConfig": "inorder.config",
    "TopicQueue": "inorder.model",
    "TransactionReceipt": "inorder.model",
    "TransactionState": "inorder.model",
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
