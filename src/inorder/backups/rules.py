"""What a backup holds, and what a restored broker must raise so that fences never go back. Pure.

A restored broker gives offsets and epochs out again that the broker gave out after the backup. So
three numbers rise with a restore (`docs/decisions/0058-backups.md`):

    start        the high half of epochs: to the Unix time, and by 2^16 at least
    generation   of the log: from the restored ends on, in every queue
    version      of every key map, if the maps may have changed since the backup: to the same
                 number at all brokers of the topic (`raised`)

What is stored keeps its numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from inorder.broker.resizing.rules import VERSION_MAX, WITHDRAWN_MAX, Versions
from inorder.errors import RemoteProtocolError, UsageError
from inorder.ordering.fence import GENERATION_BITS
from inorder.ordering.keymap import KeyMap
from inorder.wire.requests.resizing import PastVersion

FORMAT: Final = 1
STARTS_AHEAD: Final = 1 << 16
GENERATIONS_AHEAD: Final = 16
"""How many generations the broker may have begun since the backup."""


class StateFile(msgspec.Struct, frozen=True):
    """A file of the directory apart from the log: its path below it, size and checksum."""

    path: str
    size: int
    sha256: str


class SegmentFile(msgspec.Struct, frozen=True):
    """A file of the log: where it begins, its bytes, its checksum, and its name in the backup."""

    position: int
    size: int
    sha256: str
    name: str


class Manifest(msgspec.Struct, frozen=True):
    """What one backup holds; a folder without it is no backup."""

    format: int
    made_by: str
    made_at_ms: int
    begin: int
    end: int
    """The log from here to here."""
    segment_bytes: int
    queue_file_bytes: int
    token: str
    """Of the run that wrote the noted ends of queues."""
    start: int
    generation: int
    maps: dict[str, int]
    """The versions of the topics' key maps."""
    files: list[StateFile]
    segments: list[SegmentFile]

    @property
    def size(self) -> int:
        """Return how many bytes a restore copies."""
        return sum(one.size for one in self.files) + sum(one.size for one in self.segments)


def encode(manifest: Manifest) -> bytes:
    """Return the content of the manifest's file: a checksum, then JSON."""
    content = msgspec.json.format(msgspec.json.encode(manifest))
    return hashlib.sha256(content).hexdigest().encode() + b"\n" + content


def decode(data: bytes) -> Manifest:
    """Read a manifest.

    Raises:
        RemoteProtocolError: it is damaged, or of a later release.
    """
    digest, _, content = data.partition(b"\n")
    if hashlib.sha256(content).hexdigest().encode() != digest:
        raise RemoteProtocolError("its checksum is wrong")
    try:
        form = msgspec.json.decode(content, type=_Form).format
        if form != FORMAT:
            raise RemoteProtocolError(
                f"it has format {form} and this release reads format {FORMAT}: use the release "
                "that made it, or a later one"
            )
        return msgspec.json.decode(content, type=Manifest)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise RemoteProtocolError(f"not a manifest: {error}") from None


class _Form(msgspec.Struct):
    format: int


def next_start(start: int, now_ms: int) -> int:
    """Return the number that a restored broker counts its starts from."""
    return max(start + STARTS_AHEAD, now_ms // 1000)


def next_generation(generation: int, above: int | None) -> int:
    """Return the generation that a restored broker begins.

    `above` is the highest that it may have begun since the backup; None: not known.

    Raises:
        UsageError: a fence has no bits for it.
    """
    found = max(generation + GENERATIONS_AHEAD if above is None else above, generation) + 1
    if found >> GENERATION_BITS:
        raise UsageError(
            f"generation {found} does not fit into a fence, which has {GENERATION_BITS} bits for it"
        )
    return found


def raised(now: Versions, above: int, ends: Mapping[int, int]) -> Versions:
    """Return a topic whose map has the version after `above`, from the given ends of its queues on.

    All brokers that are restored with the same number get the same map: its queues are the same.

    Raises:
        UsageError: the version is not above the present one, or a fence has no bits for it.
    """
    version = above + 1
    if above < now.version or version > VERSION_MAX:
        raise UsageError(
            f"--above-version {above}: give a number from {now.version}, the version in the "
            f"backup, to {VERSION_MAX - 1}"
        )
    text = KeyMap(version, KeyMap.decode(now.map).queues).encode()
    closed = dict(ends) if now.ends is None else dict(now.ends)
    withdrawn = now.withdrawn if now.plan is None else (*now.withdrawn, now.plan.id)
    return replace(
        now,
        version=version,
        map=text,
        opened=f"restored {version}",
        plan=None,
        ends=None,
        going=False,
        past=(*now.past, PastVersion(now.version, now.map, closed)),
        withdrawn=withdrawn[-WITHDRAWN_MAX:],
    )


def check_versions(maps: Mapping[str, int], above: int | None, *, keep: bool) -> None:
    """Refuse a restore of topics with key maps that does not say what became of the maps.

    Raises:
        UsageError: the options do not say it, or contradict each other.
    """
    if above is not None and keep:
        raise UsageError("--above-version and --keep-versions: give one of them")
    if not maps or above is not None or keep:
        return
    topic = min(maps)
    raise UsageError(
        f"{len(maps)} topics have key maps, as {topic} with version {maps[topic]}. Say what became "
        "of the maps since the backup: if all brokers are restored, give each the same "
        "--above-version with the highest version that a topic had; if other brokers of the "
        "cluster still run and no topic was resized since the backup, give --keep-versions"
    )
