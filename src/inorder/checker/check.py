"""The checker's one entry: `check` takes events and returns a report.

What the testing kit offers its users: decision 31.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from inorder.checker.events import Applied, Committed, Event, Granted, Handled, Sent, Stored
from inorder.checker.handled import HandledView, Owners, judge_commits
from inorder.checker.report import Findings, Report, Rules
from inorder.checker.stored import Ledger, StoredView, judge_applied

_WHOLE_CONTRACT = Rules()


def _settle(rules: Rules, *, stored: bool, handled: bool) -> Rules:
    """Fill in open rules: a history is complete in the kinds of events that it holds."""
    return replace(
        rules,
        complete_stored=stored if rules.complete_stored is None else rules.complete_stored,
        complete_handled=handled if rules.complete_handled is None else rules.complete_handled,
    )


def check(events: Iterable[Event], *, rules: Rules = _WHOLE_CONTRACT) -> Report:
    """Judge a history. The events are read once, in any order; time is O(n log n)."""
    sends: list[Sent] = []
    records: list[Stored] = []
    runs: list[Handled] = []
    commits: list[Committed] = []
    grants: list[Granted] = []
    effects: list[Applied] = []
    for event in events:
        match event:
            case Sent():
                sends.append(event)
            case Stored():
                records.append(event)
            case Handled():
                runs.append(event)
            case Committed():
                commits.append(event)
            case Granted():
                grants.append(event)
            case Applied():
                effects.append(event)
    rules = _settle(rules, stored=bool(records), handled=bool(runs))
    if not records:  # handled messages must have been stored: judge their order
        records = [Stored(run.queue, run.offset, run.id, run.key) for run in runs]
    findings = Findings(rules.findings_max)
    ledger = Ledger(sends, findings)
    stored = StoredView(records, ledger, rules, findings)
    stored.judge()
    owners = Owners(grants)
    HandledView(runs, ledger, stored, rules, findings, owners=owners).judge()
    judge_commits(commits, runs, stored, findings)
    owners.judge(runs, commits, findings)
    judge_applied(effects, ledger, stored, findings)
    acknowledged = sum(1 for _ in ledger.acknowledged())
    counts = {
        "sent": len(ledger),
        "acknowledged": acknowledged,
        "stored": sum(len(queue) for queue in stored.by_queue.values()),
        "handled": len(runs),
        "commits": len(commits),
        **({"grants": len(grants)} if grants else {}),
        **({"applied": len(effects)} if effects else {}),
        "queues": len(stored.by_queue.keys() | {run.queue for run in runs}),
        "keys": len({sent.key for sent in sends if sent.key is not None}),
    }
    return findings.report(counts, vacuous=acknowledged < rules.acknowledged_min)
