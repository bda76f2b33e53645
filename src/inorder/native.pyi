"""Types of the compiled module, `native.pyx`."""

from collections.abc import Callable, Sequence
from typing import Any, Final

INTERFACE: Final[int]

class Batch:
    count: int
    producer: bytes | None
    named: bool
    before: int

    def numbers(self) -> bytes: ...
    def size_of(self, head_bytes: int) -> int: ...
    def pack(
        self,
        pending: bytearray,
        at: int,
        head: bytes,
        topic_part: bytes,
        position: int,
        offset: int,
        library: Callable[[bytes], int],
    ) -> bytes: ...
    def ids(self, prefix: bytes) -> bytes: ...
    def key_rows(self, prefix: int) -> tuple[bytes, bytes]: ...

def split(body: bytes, size_max: int) -> Batch | None: ...
def key_rows(
    noted: list[tuple[str, bytes, int, int]],
    prefix_of: Callable[[str], int],
    hash_slowly: Callable[[str, bytes], list[int]],
) -> tuple[bytes, bytes, bytes]: ...
def chain(
    values: Any, hashes: bytes, places: bytes, times: bytes, begin_ms: int, first: int
) -> tuple[bytes, int, bytes]: ...
def enter(values: Any, chosen: bytes, first: int, region_slots: int) -> list[int]: ...
def slots_outside(values: Any, count: int) -> list[int]: ...
def read_records(data: bytes, check_crc: bool, library: Callable[[bytes], int]) -> bytes | None: ...
def gather(data: Any, starts: Any, ends: Any) -> tuple[bytes, bytes]: ...
def property_bounds(data: bytes, starts: Any, ends: Any, name: bytes) -> bytes | None: ...
def pack_rows(
    columns: list[tuple[bytes, int, int, Any, Any, Any]],
    rows: Any,
    numbers: Any,
    before: int,
    words: tuple[bytes, bytes, bytes, bytes],
    most: int,
    bytes_max: int,
) -> list[tuple[bytes, int, int]] | None: ...
def queues_of_keys(
    column: tuple[bytes, int, int, Any, Any, Any], rows: Any, queues: int
) -> bytes | None: ...
def ranges_of(
    data: Any, count_max: int, bytes_max: int, oldest: int
) -> tuple[list[tuple[int, int]], int, int, int, bool]: ...
def count_right(
    data: Any, view: Any, base: int, end: int, topic: bytes, queue_id: int, offset: int
) -> int: ...

class Messages:
    def __init__(
        self, kind: type[Any], names: tuple[str, ...], library: Callable[[bytes], int]
    ) -> None: ...
    def read(
        self,
        data: bytes,
        at: int,
        found: list[Any],
        queue_of: Callable[[bytes, int], Any],
        fencing: object,
    ) -> int: ...

def forked() -> None: ...
def track(it: object) -> None: ...

class Sending:
    def __init__(
        self,
        send: tuple[type[Any], tuple[str, ...]],
        part: tuple[type[Any], tuple[str, ...]],
        receipt: tuple[type[Any], tuple[str, ...]],
    ) -> None: ...
    def use_futures(
        self, kind: type[Any], names: tuple[str, ...], pending: str, finished: str
    ) -> None: ...
    def drain(self, messages: Any, most: int) -> list[Any]: ...
    def wanted(self, sends: list[Any]) -> list[Any]: ...
    def place(
        self,
        sends: list[Any],
        at: int,
        name: str,
        by_key: dict[str, Any],
        placed: bytes,
        groups: dict[Any, list[Any]],
        due: int,
    ) -> tuple[int, int]: ...
    def take_alike(
        self, waiting: Any, taken: list[Any], most: int, left: int, tail: int
    ) -> int: ...
    def together(self, sends: list[Any]) -> int: ...
    def pack(self, sends: list[Any], head: bytes, first: int) -> bytes | None: ...
    def written(self, sends: list[Any], sender: object, now_ms: int) -> int: ...
    def confirm(self, sends: list[Any]) -> int: ...
    def trim(self, sent: Any) -> None: ...
    def stored(
        self, sends: list[Any], queue: object, offsets: Sequence[int], status: object
    ) -> tuple[int, int]: ...

class Tally:
    def __init__(self, kind: type[Any], room: object) -> None: ...
    def enter(self, messages: int, size: int) -> bool: ...
    def add(self, messages: int, size: int) -> None: ...

class Maker:
    def __init__(
        self,
        sending: Sending,
        patterns: tuple[object, object, object],
        tally: Tally,
        append: Callable[[Any], None],
        ids: tuple[Callable[[int], str], Any],
        check_topic: Callable[[str], None],
        numbers: tuple[int, int, int, int, int],
    ) -> None: ...
    def make(self, topic: str, body: bytes, key: str | None) -> Any: ...

class Place:
    def __init__(
        self,
        topic: bytes,
        topic_part: bytes,
        magic: int,
        queue_id: int,
        queue: Any,
        producers: dict[str, Any] | None,
        map: bytes,
        digest: bytes,
        prefix: int,
    ) -> None: ...

class PlainSends:
    def __init__(
        self,
        log: Any,
        finish: Callable[[int, int, int, int, int, int, bytes, bytes], None],
        stored_many: Callable[[Any, Sequence[int], int], None],
        library: Callable[[bytes], int],
        store_host: bytes,
        suffix: bytes,
        body_max: int,
        prefix: bytes,
        answer: tuple[bytes, ...],
        head: bytes,
        fields: bytes,
    ) -> None: ...
    def add(self, place: Place) -> None: ...
    def forget(self) -> None: ...
    def take(
        self,
        frames: list[tuple[int, bytes, bytes]],
        index: int,
        connection: object,
        born_host: bytes,
        now_ms: int,
        answers: list[bytes],
    ) -> int: ...

def split_frames(
    data: bytes, limit: int, header_max: int
) -> tuple[list[tuple[int, bytes, bytes]], int]: ...

class PullAnswers:
    def __init__(self, texts: tuple[bytes, ...], joined_max: int) -> None: ...
    def found(
        self,
        data: Any,
        view: Any,
        base: int,
        log_end: int,
        topic: bytes,
        queue_id: int,
        offset: int,
        count_max: int,
        bytes_max: int,
        wanted: frozenset[int] | None,
        min_offset: int,
        max_offset: int,
        group_flag: int,
        topic_flag: int,
        opaque: int,
    ) -> tuple[bytes, int, int, int] | None: ...
