"""What producers say they sent: one entry per id, the best outcome winning."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from inorder.checker.events import Handled, Sent, SentResult, Stored
from inorder.checker.report import Findings, Kind

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
        """Tell whether the producer never learnt the outcome, and so may have moved on."""
        sent = self._best.get(id_)
        return sent is not None and sent.result == SentResult.UNKNOWN

    def verify(self, seen: Stored | Handled, findings: Findings) -> None:
        """Compare a message that was stored or handled with what was sent."""
        if not self._best:
            return
        where = f"{seen.queue}/{seen.offset}"
        sent = self._best.get(seen.id)
        if sent is None:
            findings.add(
                Kind.PHANTOM,
                f"{where} holds id {seen.id}, which nobody sent",
                queue=seen.queue,
                key=seen.key,
                id=seen.id,
                offset=seen.offset,
            )
            return
        if sent.result == SentResult.FAILED:
            findings.add(
                Kind.ABORTED_READ,
                f"{where} holds id {seen.id}, whose send was refused",
                queue=seen.queue,
                key=seen.key,
                id=seen.id,
                offset=seen.offset,
            )
        for name in ("key", "sequence", "digest"):
            was, now = getattr(sent, name), getattr(seen, name, None)
            if now is not None and was is not None and was != now:
                findings.add(
                    Kind.CORRUPT,
                    f"{where} holds id {seen.id} with {name} {now!r}, but it was sent with {was!r}",
                    queue=seen.queue,
                    key=seen.key,
                    id=seen.id,
                    offset=seen.offset,
                    field=name,
                )


def _identity(sent: Sent) -> tuple[str, str | None, int]:
    return sent.producer, sent.key, sent.sequence
