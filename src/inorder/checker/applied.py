"""Judge the effects in a store that compares fences: each message once, in order along its key."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter

from inorder.checker.events import Applied
from inorder.checker.ledger import Ledger
from inorder.checker.report import Findings, Kind
from inorder.checker.stored import StoredView


def judge_applied(
    effects: Iterable[Applied], ledger: Ledger, stored: StoredView, findings: Findings
) -> None:
    """Find effects that are missing, doubled or out of order; without any there is no store."""
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
