"""The async client's public names."""

from __future__ import annotations

from inorder.client.admin import Admin
from inorder.client.consume.consumer import Consumer, ConsumerStatistics
from inorder.client.consume.pullconsumer import PullConsumer
from inorder.client.consume.pulls import PullResult
from inorder.client.consume.rules.outcomes import (
    Block,
    DeadLetter,
    Handled,
    Outcome,
    Park,
    Reject,
    Reply,
    Retry,
)
from inorder.client.consume.rules.pulls import PullStatus
from inorder.client.send.producer import Producer
from inorder.client.send.transactions import Transaction
from inorder.client.session import Session
from inorder.config import ClientConfig, ConsumerConfig
from inorder.model import (
    Fence,
    Message,
    ReceivedMessage,
    SendReceipt,
    SendStatus,
    TopicQueue,
    TransactionReceipt,
    TransactionState,
)

__all__ = [
    "Admin",
    "Block",
    "ClientConfig",
    "Consumer",
    "ConsumerConfig",
    "ConsumerStatistics",
    "DeadLetter",
    "Fence",
    "Handled",
    "Message",
    "Outcome",
    "Park",
    "Producer",
    "PullConsumer",
    "PullResult",
    "PullStatus",
    "ReceivedMessage",
    "Reject",
    "Reply",
    "Retry",
    "SendReceipt",
    "SendStatus",
    "Session",
    "TopicQueue",
    "Transaction",
    "TransactionReceipt",
    "TransactionState",
]
