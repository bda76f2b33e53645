"""Operating a cluster: topics, groups, offsets, messages, brokers. Apache RocketMQ's too.

    async with Admin("127.0.0.1:9876") as admin:
        await admin.topics.create("orders", queues=8)
        for progress in await admin.groups.lag("billing"):
            print(progress.queue, progress.lag)

One file per noun. The requests are Apache RocketMQ's, except for named producers, leases, parked
keys and resizes, which only inorder brokers have. A change to a cluster goes to each of its
masters; a question goes to each of them too, and the answers are merged.
"""

from __future__ import annotations

import ssl

from inorder.client.access import Access
from inorder.client.admin.cluster import (
    BrokerNode,
    Cluster,
    PendingTransactions,
    Producers,
    ProducerView,
)
from inorder.client.admin.groups import GroupMember, Groups, GroupView, Locks, QueueLag, QueueLock
from inorder.client.admin.messages import Batch, Messages
from inorder.client.admin.offsets import Offsets, QueueOffsets, ResetTarget
from inorder.client.admin.parked import Parked, ParkedKey
from inorder.client.admin.topics import QueueView, Topics, TopicView
from inorder.client.admin.users import Acls, RuleView, Users, UserView
from inorder.client.rules.resizing import TopicResize, WaitingGroup
from inorder.client.session import Session
from inorder.config import ClientConfig
from inorder.credentials import Credentials
from inorder.wire.requests.transactions import PendingTransaction

__all__ = [
    "Acls",
    "Admin",
    "Batch",
    "BrokerNode",
    "Cluster",
    "GroupMember",
    "GroupView",
    "Groups",
    "Locks",
    "Messages",
    "Offsets",
    "Parked",
    "ParkedKey",
    "PendingTransaction",
    "PendingTransactions",
    "ProducerView",
    "Producers",
    "QueueLag",
    "QueueLock",
    "QueueOffsets",
    "QueueView",
    "ResetTarget",
    "RuleView",
    "TopicResize",
    "TopicView",
    "Topics",
    "UserView",
    "Users",
    "WaitingGroup",
]


class Admin:
    """The nouns of a cluster, each with its verbs: `cluster`, `topics`, `groups`, …

    `namesrv` is `host:9876;host2:9876`, else INORDER_NAMESRV, else NAMESRV_ADDR, else
    127.0.0.1:9876; or a Session.
    `credentials` sign every request, else INORDER_ACCESS_KEY and INORDER_SECRET_KEY do, if set.
    """

    def __init__(
        self,
        namesrv: str | Session | None = None,
        *,
        config: ClientConfig | None = None,
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self._access = Access(namesrv, config=config, tls=tls, credentials=credentials)
        self._of = repr(namesrv)
        self.cluster = Cluster(self._access)
        self.topics = Topics(self._access, self.cluster)
        self.groups = Groups(self._access, self.cluster)
        self.offsets = Offsets(self._access, self.cluster)
        self.messages = Messages(self._access, self.cluster)
        self.locks = Locks(self._access, self.cluster)
        self.parked = Parked(self._access, self.cluster)
        self.producers = Producers(self._access, self.cluster)
        self.users = Users(self._access, self.cluster)
        self.acls = Acls(self._access, self.cluster)

    async def close(self) -> None:
        """Close the connections; a second call does nothing."""
        await self._access.close()

    async def __aenter__(self) -> Admin:
        await self._access.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"Admin({self._of})"
