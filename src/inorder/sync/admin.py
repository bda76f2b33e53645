"""Operating a cluster from code that blocks: the verbs of `inorder.client.admin`.

    with Admin("127.0.0.1:9876") as admin:
        admin.topics.create("orders", queues=8)
        for progress in admin.groups.lag("billing"):
            print(progress.queue, progress.lag)

Each verb has the signature and the docstring of the async method. Why there are two clients with
the same methods: decision 27.
"""

from __future__ import annotations

import ssl

from inorder.client import admin as twin
from inorder.config import ClientConfig
from inorder.credentials import Credentials
from inorder.sync.portal import Closeable, Facade, blocking, lease


class Cluster(Facade):
    """The brokers that the name server knows."""

    info = blocking(twin.Cluster.info)
    brokers = blocking(twin.Cluster.brokers)
    masters = blocking(twin.Cluster.masters)
    find = blocking(twin.Cluster.find)
    runtime = blocking(twin.Cluster.runtime)
    settings = blocking(twin.Cluster.settings)
    update_settings = blocking(twin.Cluster.update_settings)
    transactions = blocking(twin.Cluster.transactions)
    resume_transaction = blocking(twin.Cluster.resume_transaction)
    clean = blocking(twin.Cluster.clean)
    route = blocking(twin.Cluster.route)


class Topics(Facade):
    """The topics of a cluster."""

    names = blocking(twin.Topics.names)
    table = blocking(twin.Topics.table)
    create = blocking(twin.Topics.create)
    update = blocking(twin.Topics.update)
    resize = blocking(twin.Topics.resize)
    repair = blocking(twin.Topics.repair)
    resize_status = blocking(twin.Topics.resize_status)
    abort_resize = blocking(twin.Topics.abort_resize)
    release_group = blocking(twin.Topics.release_group)
    delete = blocking(twin.Topics.delete)
    configs = blocking(twin.Topics.configs)
    find_queue = blocking(twin.Topics.find_queue)
    describe = blocking(twin.Topics.describe)


class Groups(Facade):
    """The consumer groups of a cluster."""

    names = blocking(twin.Groups.names)
    table = blocking(twin.Groups.table)
    create = blocking(twin.Groups.create)
    delete = blocking(twin.Groups.delete)
    configs = blocking(twin.Groups.configs)
    describe = blocking(twin.Groups.describe)
    lag = blocking(twin.Groups.lag)
    consumers = blocking(twin.Groups.consumers)
    producers = blocking(twin.Groups.producers)


class Offsets(Facade):
    """The offsets of groups."""

    get = blocking(twin.Offsets.get)
    at_time = blocking(twin.Offsets.at_time)
    set = blocking(twin.Offsets.set)
    reset = blocking(twin.Offsets.reset)
    reset_queue = blocking(twin.Offsets.reset_queue)


class Messages(Facade):
    """The messages of a cluster."""

    waiting = blocking(twin.Messages.waiting)
    by_id = blocking(twin.Messages.by_id)
    by_key = blocking(twin.Messages.by_key)
    traces = blocking(twin.Messages.traces)
    by_time = blocking(twin.Messages.by_time)
    by_offset = blocking(twin.Messages.by_offset)
    read = blocking(twin.Messages.read)


class Locks(Facade):
    """The owners of queues at all brokers."""

    list = blocking(twin.Locks.list)
    release = blocking(twin.Locks.release)


class Parked(Facade):
    """The parked keys of all brokers."""

    list = blocking(twin.Parked.list)
    full = blocking(twin.Parked.full)
    show = blocking(twin.Parked.show)
    redrive = blocking(twin.Parked.redrive)
    cancel = blocking(twin.Parked.cancel)
    drop = blocking(twin.Parked.drop)
    park = blocking(twin.Parked.park)
    keys = blocking(twin.Parked.keys)
    redriven = blocking(twin.Parked.redriven)
    unpark = blocking(twin.Parked.unpark)


class Producers(Facade):
    """The named producers of all brokers."""

    list = blocking(twin.Producers.list)
    drop = blocking(twin.Producers.drop)


class Users(Facade):
    """The users of all brokers."""

    list = blocking(twin.Users.list)
    get = blocking(twin.Users.get)
    create = blocking(twin.Users.create)
    update = blocking(twin.Users.update)
    delete = blocking(twin.Users.delete)


class Acls(Facade):
    """The rules of all brokers."""

    list = blocking(twin.Acls.list)
    get = blocking(twin.Acls.get)
    set = blocking(twin.Acls.set)
    delete = blocking(twin.Acls.delete)


class Admin(Closeable):
    """The nouns of a cluster, each with its verbs: `cluster`, `topics`, `groups`, …

    `namesrv` is `host:9876;host2:9876`, else INORDER_NAMESRV, else NAMESRV_ADDR, else
    127.0.0.1:9876.
    `credentials` sign every request, else INORDER_ACCESS_KEY and INORDER_SECRET_KEY do, if set.
    """

    def __init__(
        self,
        namesrv: str | None = None,
        *,
        config: ClientConfig | None = None,
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self._async = twin.Admin(namesrv, config=config, tls=tls, credentials=credentials)
        self._portal = lease()
        self._closed = False
        self.cluster = Cluster(self._portal, self._async.cluster)
        self.topics = Topics(self._portal, self._async.topics)
        self.groups = Groups(self._portal, self._async.groups)
        self.offsets = Offsets(self._portal, self._async.offsets)
        self.messages = Messages(self._portal, self._async.messages)
        self.locks = Locks(self._portal, self._async.locks)
        self.parked = Parked(self._portal, self._async.parked)
        self.producers = Producers(self._portal, self._async.producers)
        self.users = Users(self._portal, self._async.users)
        self.acls = Acls(self._portal, self._async.acls)

    def close(self) -> None:
        """Close the connections; a second call does nothing."""
        if not self._closed:
            self._closed = True
            self._portal.finish(self._async.close)

    def __enter__(self) -> Admin:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._async)
