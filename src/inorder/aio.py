"""The async client's public names."""

from __future__ import annotations

from inorder.client.producer import Producer
from inorder.client.pullconsumer import PullConsumer, PullResult, PullStatus
from inorder.client.session import Session
from inorder.config import ClientConfig
from inorder.model import ReceivedMessage, SendReceipt, TopicQueue

__all__ = [
    "ClientConfig",
    "Producer",
    "PullConsumer",
    "PullResult",
    "PullStatus",
    "ReceivedMessage",
    "SendReceipt",
    "Session",
    "TopicQueue",
]
