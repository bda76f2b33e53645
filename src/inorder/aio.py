"""The async client's public names."""

from __future__ import annotations

from inorder.client.admin import Admin
from inorder.client.consumer import Consumer, ConsumerStatistics
from inorder.client.policies import Block, DeadLetter, Handled, Outcome, Park, Reject, Retry
from inorder.client.producer import Producer
from inorder.client.pullconsumer import PullConsumer
from inorder.client.pulling import PullResult
from inorder.client.session import Session
from inorder.client.state.pulldecisions import PullStatus
from inorder.config import ClientConfig, ConsumerConfig
from inorder.model import Fence, Message, ReceivedMessage, SendReceipt, SendStatus, TopicQueue

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
    "Retry",
    "SendReceipt",
    "SendStatus",
    "Session",
    "TopicQueue",
]
