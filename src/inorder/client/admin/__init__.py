"""Operating a cluster: topics, groups, offsets, messages, brokers. Apache RocketMQ's too.

    async with Session("127.0.0.1:9876") as session:
        admin = Admin(session)
        await admin.topics.create("orders", queues=8)
        for progress in await admin.groups.lag("billing"):
            print(progress.queue, progress.lag)

One file per noun. Only request codes that Apache RocketMQ knows are used. What is told to a cluster
is told to each of its masters; what is asked is asked of each of them and put together.
"""

from __future__ import annotations

from inorder.client.admin.cluster import BrokerNode, Cluster
from inorder.client.admin.groups import GroupMember, Groups, GroupView, QueueLag
from inorder.client.admin.messages import Messages
from inorder.client.admin.offsets import Offsets, QueueOffsets
from inorder.client.admin.topics import QueueView, Topics, TopicView
from inorder.client.session import Session

__all__ = [
    "Admin",
    "BrokerNode",
    "Cluster",
    "GroupMember",
    "GroupView",
    "Groups",
    "Messages",
    "Offsets",
    "QueueLag",
    "QueueOffsets",
    "QueueView",
    "TopicView",
    "Topics",
]


class Admin:
    """The nouns of a cluster, each with its verbs."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.cluster = Cluster(session)
        self.topics = Topics(session, self.cluster)
        self.groups = Groups(session, self.cluster)
        self.offsets = Offsets(session, self.cluster)
        self.messages = Messages(session, self.cluster)

    def __repr__(self) -> str:
        return f"Admin({self._session!r})"
