"""Judges of stored messages.

    queues    every acknowledged message is stored once, in order, where the reply said.
              Per (producer, key), first copies lie in increasing sequence (contract P1). A message
              whose outcome its producer never learnt may come late, because the producer moved on;
              that is only counted.
    effects   a store that compares fences has each message once, in order along its key

`sent` events are merged first: one entry per id, and the best outcome wins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from operator import attrgetter

from inorder.checker.events import Applied, Handled, Sent, SentResult, Stored
from inorder.checker.report import Findings, Kind, Rules

_RANK = {SentResult.FAILED: 0, SentResult.UNKNOWN: 1, SentResult.OK: 2}


class Ledger:
    """The sends of a history by id.

    A send that timed out and was then retried has two outcomes: an acknowledgement outranks an
    unknown one, and an unknown one outranks a refusal (the first try may still have got through).
    """

    __slots__ = ("_best",)

    def __init__(self, sends: Iterable[Sent], findings: Findings) -> None:
        self._best: dict[str, Sent] = {}
        for sent in sends:
            known = self._best.get(sent.id)
            if known is not None and _identity(known) != _identity(sent):
                findings.add(
                    Kind.CORRUPT,
                    f"id {sent.id} was sent twice as different messages: "
                    f"{_identity(known)} and {_identity(sent)}",
                    key=sent.key,
                    id=sent.id,
                )
            if known is None or _RANK[sent.result] > _RANK[known.result]:
                self._best[sent.id] = sent

    def __len__(self) -> int:
        return len(self._best)

    def __contains__(self, id_: str) -> bool:
        return id_ in self._best

    def get(self, id_: str) -> Sent | None:
        """Return the send of an id."""
        return self._best.get(id_)

    def acknowledged(self) -> Iterator[Sent]:
        """Return the sends that must be found."""
        return (sent for sent in self._best.values() if sent.result == SentResult.OK)

    def unknown(self, id_: str) -> bool:
        """Return whether the producer never learnt the outcome, and so may have moved on."""
        sent = self._best.get(id_)
        return sent is not None and sent.result == SentResult.UNKNOWN

    def verify(self, seen: Stored | Handled, findings: Findings) -> None:
        """Compare a stored or handled message with its send."""
        if not self._best:
            return
        where = f"{seen.queue}/{seen.offset}"
        sent = self._best.get(seen.id)
        if sent is None:
            findings.add_message(
                Kind.PHANTOM,
                f"{where} holds id {seen.id}, which nobody sent",
                seen,
                offset=seen.offset,
            )
            return
        if sent.result == SentResult.FAILED:
            findings.add_message(
                Kind.ABORTED_READ,
                f"{where} holds id {seen.id}, whose send was refused",
                seen,
                offset=seen.offset,
            )
        for name in ("key", "sequence", "digest"):
            was, now = getattr(sent, name), getattr(seen, name, None)
            if now is not None and was is not None and was != now:
                findings.add_message(
                    Kind.CORRUPT,
                    f"{where} holds id {seen.id} with {name} {now!r}, but it was sent with {was!r}",
                    seen,
                    offset=seen.offset,
                    field=name,
                )


def _identity(sent: Sent) -> tuple[str, str | None, int]:
    return sent.producer, sent.key, sent.sequence


class StoredView:
    """The records of a history, by queue and by id."""

    __slots__ = ("_findings", "_ledger", "_rules", "by_id", "by_queue")

    def __init__(
        self, records: Iterable[Stored], ledger: Ledger, rules: Rules, findings: Findings
    ) -> None:
        self._ledger = ledger
        self._rules = rules
        self._findings = findings
        self.by_queue: dict[str, dict[int, Stored]] = {}
        self.by_id: dict[str, list[Stored]] = {}
        for record in records:
            self._place(record)

    def judge(self) -> None:
        """Find all faults of the stored messages."""
        for queue in sorted(self.by_queue):
            offsets = sorted(self.by_queue[queue])
            if self._rules.dense:
                self._judge_gaps(queue, offsets)
            self._judge_order(queue, offsets)
        self._judge_copies()
        if self._rules.one_queue_per_key:
            self._judge_split_keys()
        if self._rules.complete_stored:
            for sent in self._ledger.acknowledged():
                self._judge_acknowledged(sent)

    def _place(self, record: Stored) -> None:
        """Add a record, which may have been read twice."""
        queue = self.by_queue.setdefault(record.queue, {})
        known = queue.get(record.offset)
        if known is None:
            queue[record.offset] = record
            self.by_id.setdefault(record.id, []).append(record)
            self._ledger.verify(record, self._findings)
        elif known.id != record.id:
            self._conflict(record.queue, record.offset, known.id, record.id)

    def _judge_gaps(self, queue: str, offsets: list[int]) -> None:
        for before, after in pairwise(offsets):
            if after != before + 1:
                self._findings.add(
                    Kind.GAP,
                    f"{queue} has nothing between offset {before} and {after}",
                    queue=queue,
                    before=before,
                    after=after,
                )

    def _judge_order(self, queue: str, offsets: list[int]) -> None:
        records = self.by_queue[queue]
        newest: dict[tuple[str | None, str], Stored] = {}
        seen: set[str] = set()
        for record in (records[offset] for offset in offsets):
            sequence = self._sequence(record)
            key = self._key(record)
            if record.id in seen or key is None or sequence is None:
                continue
            seen.add(record.id)
            sent = self._ledger.get(record.id)
            line = (sent.producer if sent else None, key)
            top = newest.get(line)
            if top is None or sequence > (self._sequence(top) or 0):
                newest[line] = record
            elif self._ledger.unknown(record.id):
                self._findings.notes["late_unknown"] += 1
            else:
                self._findings.add(
                    Kind.INVERTED,
                    f"{queue}: key {key} has sequence {sequence} at offset {record.offset}, "
                    f"after sequence {self._sequence(top)} at offset {top.offset}",
                    queue=queue,
                    key=key,
                    id=record.id,
                    after_id=top.id,
                    where="stored",
                )

    def _judge_copies(self) -> None:
        for id_, copies in self.by_id.items():
            if len(copies) == 1:
                continue
            if not self._rules.stored_once:
                self._findings.notes["stored_copies"] += len(copies) - 1
                continue
            places = ", ".join(f"{copy.queue}/{copy.offset}" for copy in copies)
            self._findings.add(
                Kind.DOUBLED,
                f"id {id_} is stored {len(copies)} times: {places}",
                queue=copies[0].queue,
                key=copies[0].key,
                id=id_,
                where="stored",
            )

    def _judge_split_keys(self) -> None:
        homes: dict[str, str] = {}
        reported: set[str] = set()
        for queue in sorted(self.by_queue):
            for record in self.by_queue[queue].values():
                key = self._key(record)
                if key is None or key in reported:
                    continue
                home = homes.setdefault(key, queue)
                if home != queue:
                    reported.add(key)
                    self._findings.add(
                        Kind.SPLIT_KEY,
                        f"key {key} lies in {home} and in {queue}",
                        queue=queue,
                        key=key,
                        id=record.id,
                    )

    def _judge_acknowledged(self, sent: Sent) -> None:
        copies = self.by_id.get(sent.id)
        said = f"{sent.queue}/{sent.offset}"
        if copies is None:
            self._findings.add_message(
                Kind.LOST,
                f"id {sent.id} was acknowledged at {said} and is stored nowhere",
                sent,
                offset=sent.offset,
                where="stored",
            )
        if sent.queue is None or sent.offset is None:
            return
        there = self.by_queue.get(sent.queue, {}).get(sent.offset)
        if there is not None and there.id != sent.id:
            self._conflict(sent.queue, sent.offset, sent.id, there.id)
        elif there is None and copies is not None:
            self._findings.add_message(
                Kind.OFFSET_CONFLICT,
                f"id {sent.id} was acknowledged at {said} but lies at "
                f"{copies[0].queue}/{copies[0].offset}",
                sent,
                offset=sent.offset,
            )

    def _conflict(self, queue: str, offset: int, first: str, second: str) -> None:
        self._findings.add(
            Kind.OFFSET_CONFLICT,
            f"{queue}/{offset} named id {first} and later id {second}",
            queue=queue,
            offset=offset,
            id=first,
            other_id=second,
        )

    def _sequence(self, record: Stored) -> int | None:
        if record.sequence is not None:
            return record.sequence
        sent = self._ledger.get(record.id)
        return None if sent is None else sent.sequence

    def _key(self, record: Stored) -> str | None:
        if record.key is not None:
            return record.key
        sent = self._ledger.get(record.id)
        return None if sent is None else sent.key


def judge_applied(
    effects: Iterable[Applied], ledger: Ledger, stored: StoredView, findings: Findings
) -> None:
    """Find missing, doubled and misordered effects; a history without effects has no store."""
    effects = sorted(effects, key=attrgetter("at_ns"))
    if not effects:
        return
    seen: set[str] = set()
    tops: dict[str | None, Applied] = {}
    for effect in effects:
        if effect.id in seen:
            findings.add(
                Kind.DOUBLED, f"id {effect.id} was applied twice", key=effect.key, id=effect.id,
                where="applied",
            )  # fmt: skip
        seen.add(effect.id)
        top = tops.get(effect.key)
        if top is not None and top.fence >= effect.fence:
            findings.add(
                Kind.INVERTED,
                f"id {effect.id} of key {effect.key} was applied with fence {effect.fence} after "
                f"{top.fence} of id {top.id}",
                key=effect.key,
                id=effect.id,
                where="applied",
            )
        tops[effect.key] = effect
    expected = {sent.id: sent.key for sent in ledger.acknowledged()}
    expected |= {id_: copies[0].key for id_, copies in stored.by_id.items()}
    for id_, key in expected.items():
        if id_ not in seen:
            findings.add(Kind.LOST, f"id {id_} was never applied", key=key, id=id_, where="applied")
