"""The key maps of a directory that no broker has open."""

from __future__ import annotations

from pathlib import Path

from inorder.broker.resizing.rules import Resizes, Versions
from inorder.broker.resizing.service import map_text
from inorder.broker.topics.rules import TopicTable
from inorder.broker.topics.storage import TopicNotes
from inorder.disk import Files
from inorder.ordering.keymap import version_of
from inorder.store.snapshot import Snapshot


class Maps:
    """The versions of the topics' key maps, as the files of a directory say."""

    def __init__(self, files: Files, root: Path) -> None:
        self._file = Snapshot(files, root / "inorder" / "resizing.json")
        self._table = Resizes()
        self._topics = TopicTable(cluster="", broker="", now_ms=0)
        self._file.load(self._table.decode)
        Snapshot(files, root / "config" / "topics.json").load(self._topics.decode)
        notes = TopicNotes(files, root / "config" / "topics.json.new")
        notes.load(self._topics, 0)
        notes.close(remove=False)

    def topics(self) -> dict[str, Versions]:
        """Return the topics that have a key map."""
        found = {}
        for config in self._topics:
            text = map_text(config)
            now = self._table.of(config.name, version_of(text), text)
            if now.version and now.map:
                found[config.name] = now
        return found

    def put(self, topic: str, now: Versions) -> None:
        """Change a topic; `save` puts it on disk."""
        self._table.topics[topic] = now

    def save(self) -> None:
        """Save the versions; the next start of the broker corrects `topics.json` by them."""
        self._file.save(self._table.encode())


def versions_of(files: Files, root: Path) -> dict[str, int]:
    """Return the version of each key map."""
    return {topic: now.version for topic, now in Maps(files, root).topics().items()}
