"""Where to begin and where to end, asked of the cluster: what the readers of the driver share."""

from __future__ import annotations

import re
from datetime import datetime

from inorder.errors import ConfigError
from inorder.model import TopicQueue
from inorder.spark.cluster import Cluster
from inorder.spark.options import SourceOptions, Where
from inorder.spark.planning import EARLIEST, Chapter, Places, resolve


class Plans:
    """The queues of the topics that an option names, and places in them."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.cluster = Cluster(options.servers, group=options.group)

    def queues(self) -> list[TopicQueue]:
        """Return all queues of all topics, as they are now."""
        return [queue for topic in self.topics() for queue in self.cluster.queues(topic)]

    def topics(self) -> tuple[str, ...]:
        """Return the topics that are named, or that match now."""
        if self.options.pattern is None:
            return self.options.topics
        wanted = re.compile(self.options.pattern)
        return tuple(name for name in self.cluster.topics() if wanted.fullmatch(name))

    def chapters(self) -> list[Chapter]:
        """Return the versions of the topics' key maps that are over, with their ends."""
        found = []
        for topic in self.topics():
            ends: dict[int, Places] = {}
            for view in self.cluster.versions(topic):
                over = [(past.version, past.ends) for past in view.past]
                if view.ends is not None:  # stopped here; elsewhere the next one may be open
                    over.append((view.version, view.ends))
                for version, noted in over:
                    ends.setdefault(version, {}).update(
                        {TopicQueue(topic, view.broker, at): end for at, end in noted.items()}
                    )
            found += [Chapter(topic, version, places) for version, places in ends.items()]
        return found

    def start(self, queues: list[TopicQueue], *, default: str) -> Places:
        """Return where reading begins."""
        return self._places(queues, self.options.starting or default, "startingOffsets")

    def end(self, queues: list[TopicQueue]) -> Places:
        """Return where a batch ends."""
        wanted = self._places(queues, self.options.ending or "latest", "endingOffsets")
        ends = self.cluster.ends(queues)
        return {queue: min(offset, ends[queue]) for queue, offset in wanted.items()}

    def _places(self, queues: list[TopicQueue], where: Where, option: str) -> Places:
        cluster = self.cluster
        if where == "earliest":
            return cluster.oldest(queues)
        if where == "latest":
            return cluster.ends(queues)
        if isinstance(where, datetime):
            return cluster.at_time(queues, int(where.timestamp() * 1000))
        if where == "group":
            oldest = cluster.oldest(queues)
            return {
                queue: oldest[queue] if found is None else found
                for queue, found in ((queue, cluster.committed(queue)) for queue in queues)
            }
        assert isinstance(where, dict), f"{where!r} was checked when the options were read"
        unknown = sorted(set(where) - set(queues))
        if unknown:
            queue = unknown[0]
            raise ConfigError(
                f"{option}: there is no queue {queue.index} of topic {queue.topic} at broker "
                f"{queue.broker}"
            )
        given = {queue: where.get(queue, EARLIEST) for queue in queues}
        return resolve(given, cluster.oldest(queues), cluster.ends(queues))
