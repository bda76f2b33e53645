"""The async client's public names."""

from __future__ import annotations

from inorder.client.admin import Admin
from inorder.client.producer import Producer
from inorder.client.pullconsumer import PullConsumer
from inorder.client.pulling import PullResult, PullStatus
from inorder.client.session import Session
from inorder.config import ClientConfig
from inorder.model import Message, ReceivedMessage, SendReceipt, TopicQueue

__all__ = [
    "Admin",
    "ClientConfig",
    "Message",
    "Producer",
    "PullConsumer",
    "PullResult",
    "PullStatus",
    "ReceivedMessage",
    "SendReceipt",
    "Session",
    "TopicQueue",
]
