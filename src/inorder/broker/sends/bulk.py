"""Large batches, column by column: the same records as `broker/sends/packing.py` makes one by one.

A sink of rows sends a thousand messages in a request. Their heads, queue entries and numbers are
then worked out as arrays; what is left to a loop is slicing, and the sum over each body. It pays
from BULK_MIN messages on. Whatever is not plain (letters beyond ASCII among numbered messages, two
numbers in one message) is left to the way message by message: every function here either
does the whole or returns None before anything is changed.
"""

from __future__ import annotations

import operator
import re
import struct
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from inorder.store.pieces import Array, pieces, rows_of_bytes, windows
from inorder.wire.extensions import PREDECESSOR, SEQUENCE
from inorder.wire.requests.producers import MARK_BYTES, NUMBER_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

BULK_MIN: Final = 128
ITEM_HEAD_BYTES: Final = 20
ITEM_BYTES_MIN: Final = 23
PROPERTIES_BYTES_MAX: Final = 32_767
SIZES_MAX: Final = 16
"""Up to so many different sizes it pays to copy those of one size together."""
UNIQUE_BYTES: Final = b"UNIQ_KEY\x01"
ENTRY: Final = np.dtype([("position", ">i8"), ("size", ">i4"), ("tag", ">i8")])
_SEQUENCE: Final = f"\x02{SEQUENCE}\x01".encode()
_PREDECESSOR: Final = f"\x02{PREDECESSOR}\x01".encode()
_DIGITS_MAX: Final = 18
_SIZE: Final = struct.Struct(">i").unpack_from
_ZERO: Final = 48
_NINE: Final = 9
_GROUP: Final = re.compile(
    MARK_BYTES + b"([^\x01\x02]+)" + _SEQUENCE + b"([0-9]{1,18})"
    b"(?:" + _PREDECESSOR + b"(-1|[0-9]{1,18}))?\x02"
)  # fmt: skip


class Items(NamedTuple):
    """The messages of a batch: where their parts lie in its body."""

    flags: Array
    body_at: Array
    body_end: Array
    end: Array
    properties: list[bytes]
    joined: bytes
    """All properties, one behind the other, for what is searched for in all of them."""


def split(body: bytes, size_max: int) -> Items | None:
    """Return the messages of a large batch, None if it is small or not plain."""
    # hot: 0.3 µs a message
    end = len(body)
    if end < BULK_MIN * ITEM_BYTES_MIN or end > size_max:
        return None
    starts: list[int] = []
    add, at = starts.append, 0
    while at + 4 <= end:
        add(at)
        (size,) = _SIZE(body, at)
        if size < ITEM_BYTES_MIN:
            return None
        at += size
    if at != end or len(starts) < BULK_MIN:
        return None
    data = np.frombuffer(body, np.uint8)
    # Every four bytes of the body as a number, so that those at any places are one look-up.
    fours: Array = np.ndarray((end - 3,), ">i4", body, strides=(1,))
    start = np.array(starts, np.int64)
    ends = np.append(start[1:], end)
    flags, body_sizes = fours[start + 12], fours[start + 16].astype(np.int64)
    body_at = start + ITEM_HEAD_BYTES
    body_end = body_at + body_sizes
    if int(body_sizes.min()) < 1 or (body_end + 2 > ends).any():
        return None
    properties = data[body_end].astype(np.int64) << 8 | data[body_end + 1]
    if (body_end + 2 + properties != ends).any() or int(properties.max()) > PROPERTIES_BYTES_MAX:
        return None
    if ((properties > 0) & (data[ends - 1] == 0)).any():
        return None
    texts = [body[a:b] for a, b in zip((body_end + 2).tolist(), ends.tolist(), strict=True)]
    joined = b"\x02".join(texts)
    # One letter is found much faster than a word. Whoever has these words is not plain.
    if (b"L" in joined and b"DELAY" in joined) or (b"M" in joined and b"TIMER" in joined):
        return None
    return Items(flags, body_at, body_end, ends, texts, joined)


class Numbers(NamedTuple):
    """What a batch says of itself: whose it is, its numbers, and what the first comes behind."""

    producer_id: str
    numbers: list[int]
    before: int | None
    """None: the producer is anonymous, its numbers follow one another."""


def numbers_of(properties: Sequence[bytes]) -> Numbers | None:
    """Return the numbers of a batch of one producer, each behind the one before it; else None."""
    # hot: 0.8 µs a message
    first = _GROUP.search(properties[0] + b"\x02")
    if first is None or sum(map(bytes.count, properties, repeat(MARK_BYTES))) != len(properties):
        return None
    name, text, before = first.groups()
    # One mark each, all of one producer, each behind another property: the id at least.
    halves = list(map(bytes.split, properties, repeat(b"\x02" + MARK_BYTES + name + _SEQUENCE)))
    if set(map(len, halves)) != {2} or not all(map(bytes.isascii, properties)):
        return None
    if not all(map(operator.contains, properties, repeat(UNIQUE_BYTES))):
        return None
    rests = [rest + b"\x02" for _, rest in halves]
    if before is None:
        numbers = list(range(int(text), int(text) + len(rests)))
        wanted = [b"%d\x02" % number for number in numbers]
        if any(map(operator.contains, rests, repeat(_PREDECESSOR[1:]))):
            return None
    else:
        texts = [rest[: rest.find(b"\x02")] for rest in rests]
        if not all(map(bytes.isdigit, texts)) or max(map(len, texts)) > _DIGITS_MAX:
            return None
        numbers = list(map(int, texts))
        behind = [before, *texts[:-1]]
        wanted = [b"%s%s%s\x02" % (a, _PREDECESSOR, b) for a, b in zip(texts, behind, strict=True)]
    if not all(map(bytes.startswith, rests, wanted)):
        return None
    return Numbers(name.decode(), numbers, None if before is None else int(before))


def aligned_numbers(body: bytes, items: Items) -> Numbers | None:
    """Return what `numbers_of` does if the numbers of a named producer are in line.

    That is, all have as many digits, and as much stands behind them.
    """
    # hot: 0.15 µs a message
    first = _GROUP.search(items.properties[0] + b"\x02")
    count, starts = len(items.properties), items.body_end + 2
    if first is None or first[3] is None or not items.joined.isascii():
        return None
    if items.joined.count(MARK_BYTES) != count:
        return None
    mark = b"\x02" + MARK_BYTES + first[1] + _SEQUENCE
    firsts, places = items.properties[:2], [text.find(mark) for text in items.properties[:2]]
    at = items.end - (len(firsts[1]) - places[1])
    at[0] = starts[0] + places[0]  # its predecessor, which was read above, may be of any length
    number_at, digits = at + len(mark), len(first[2])
    before_at = number_at + digits + len(_PREDECESSOR)
    if min(places) < 0 or (at < starts).any():
        return None
    if (before_at[1:] + digits + 1 > items.end[1:]).any():
        return None
    if pieces(body, at, len(mark)).tobytes() != mark * count:
        return None
    if pieces(body, starts, len(UNIQUE_BYTES)).tobytes() != UNIQUE_BYTES * count:
        return None
    if pieces(body, number_at + digits, len(_PREDECESSOR)).tobytes() != _PREDECESSOR * count:
        return None
    texts = pieces(body, number_at, digits + 1)
    if pieces(body, before_at[1:], digits + 1).tobytes() != texts[:-1].tobytes():
        return None
    values = rows_of_bytes(texts)[:, :digits] - np.uint8(_ZERO)  # what is below wraps around
    if (values > _NINE).any():
        return None
    numbers = values @ (10 ** np.arange(digits - 1, -1, -1, dtype=np.int64))
    return Numbers(first[1].decode(), numbers.tolist(), int(first[3]))


def follow(found: Numbers, last: int) -> bool:
    """Tell whether the numbers of a batch are plainly those behind `last`, one after another."""
    numbers = found.numbers
    before = numbers[0] - 1 if found.before is None else found.before
    ascend = all(map(operator.lt, [last, *numbers[:-1]], numbers))
    return before == last and ascend and numbers[-1] <= NUMBER_MAX


class Head(NamedTuple):
    """What the records of a batch share."""

    magic: int
    queue_id: int
    sys_flag: int
    born_at_ms: int
    born_host: bytes
    stored_at_ms: int
    store_host: bytes
    redeliveries: int
    topic_part: bytes


class Packed(NamedTuple):
    """The queue entries of a batch, and where its records begin."""

    entries: bytes
    positions: list[int]


def size_of(items: Items, head_bytes: int) -> int:
    """Return how long the records are whose head with the topic has so many bytes."""
    inside = int((items.end - items.body_at).sum())
    return inside + (head_bytes + 4) * len(items.properties)


def sums(body: bytes, items: Items, crc: Callable[[bytes], int]) -> list[int]:
    """Return the check sum of each message's body."""
    places = zip(items.body_at.tolist(), items.body_end.tolist(), strict=True)
    return [crc(body[a:b]) for a, b in places]


def pack(  # noqa: PLR0917 - called in one place
    body: bytes,
    items: Items,
    head: Head,
    position: int,
    offset: int,
    crcs: list[int],
    tag_hashes: list[int] | None,
    room: memoryview,
) -> Packed:
    """Put the records of a batch that lies at `position` and begins with `offset` into the room.

    `tag_hashes` is None if no message has a tag.
    """
    # hot: 0.3 µs a message
    count = len(items.properties)
    layout = _layout(len(head.born_host), len(head.store_host))
    fixed = layout.itemsize + len(head.topic_part) + 4
    sizes = items.end - items.body_at + fixed
    positions = position + np.concatenate(([0], np.cumsum(sizes[:-1])))
    heads = np.zeros(count, layout)
    heads["size"], heads["magic"], heads["crc"] = sizes, head.magic, crcs
    heads["queue"], heads["flag"] = head.queue_id, items.flags
    heads["offset"] = np.arange(offset, offset + count)
    heads["position"], heads["sys_flag"] = positions, head.sys_flag
    heads["born_at"], heads["born_host"] = head.born_at_ms, np.void(head.born_host)
    heads["stored_at"], heads["store_host"] = head.stored_at_ms, np.void(head.store_host)
    heads["redeliveries"] = head.redeliveries
    assert positions[-1] - position + sizes[-1] == len(room), "it was computed from the same sizes"
    if not _lay_out(body, items, heads, positions - position, head.topic_part, room):
        room[:] = _joined(body, items, heads, head.topic_part)
    entries = np.zeros(count, ENTRY)
    entries["position"], entries["size"] = positions, sizes
    if tag_hashes is not None:
        entries["tag"] = tag_hashes
    return Packed(entries.tobytes(), positions.tolist())


def _joined(body: bytes, items: Items, heads: Array, topic_part: bytes) -> bytes:
    """Return the records, put together one by one."""
    blob, width, count = heads.tobytes(), heads.itemsize, len(heads)
    body_ends = items.body_end.tolist()
    parts: list[bytes] = [topic_part] * (4 * count)
    parts[0::4] = [blob[at : at + width] for at in range(0, width * count, width)]
    parts[1::4] = [body[a:b] for a, b in zip((items.body_at - 4).tolist(), body_ends, strict=True)]
    parts[3::4] = [body[a:b] for a, b in zip(body_ends, items.end.tolist(), strict=True)]
    return b"".join(parts)


def _lay_out(  # noqa: PLR0917 - called in one place
    body: bytes, items: Items, heads: Array, places: Array, topic_part: bytes, room: memoryview
) -> bool:
    """Put each part of all records where it belongs in one go; False if their sizes differ much.

    `places` is where each begins. Parts of one size are copied together.
    """
    body_sizes, rest_sizes = items.body_end - items.body_at + 4, items.end - items.body_end
    kinds = [np.unique(sizes) for sizes in (body_sizes, rest_sizes)]
    if max(map(len, kinds)) > SIZES_MAX:
        return False
    windows(room, heads.itemsize)[places] = heads.view(f"V{heads.itemsize}")
    behind = places + heads.itemsize
    topic_at = behind + body_sizes
    windows(room, len(topic_part))[topic_at] = np.void(topic_part)
    for starts, sizes, targets, kind in (
        (items.body_at - 4, body_sizes, behind, kinds[0]),
        (items.body_end, rest_sizes, topic_at + len(topic_part), kinds[1]),
    ):
        for one in kind.tolist():
            chosen = slice(None) if len(kind) == 1 else sizes == one
            windows(room, one)[targets[chosen]] = pieces(body, starts[chosen], one)
    return True


def noted(
    topic: str, items: Items, positions: list[int], now_ms: int
) -> zip[tuple[str, bytes, int, int]]:
    """Return what the key index wants to know of each record."""
    return zip(repeat(topic), items.properties, positions, repeat(now_ms))


_LAYOUTS: Final[dict[tuple[int, int], Any]] = {}


def _layout(born_bytes: int, store_bytes: int) -> Any:
    """Return the fields of a record before its body."""
    key = (born_bytes, store_bytes)
    found = _LAYOUTS.get(key)
    if found is None:
        found = _LAYOUTS[key] = np.dtype(
            [
                ("size", ">i4"), ("magic", ">i4"), ("crc", ">i4"), ("queue", ">i4"),
                ("flag", ">i4"), ("offset", ">i8"), ("position", ">i8"), ("sys_flag", ">i4"),
                ("born_at", ">i8"), ("born_host", f"V{born_bytes}"), ("stored_at", ">i8"),
                ("store_host", f"V{store_bytes}"), ("redeliveries", ">i4"),
                ("transaction", ">i8"),
            ]
        )  # fmt: skip
    return found
