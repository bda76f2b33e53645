"""docs/compatibility.md, made from what the replay found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from inorder.wire.codes import RequestCode
from tests.golden.replay import capture
from tests.golden.replay.capture import BROKER, NAMESRV
from tests.golden.replay.compare import ADDRESS
from tests.golden.replay.rules import LATER, RULES, Rule
from tests.golden.replay.run import Judged, Result, census, result_of

PAGE = Path(__file__).parents[3] / "docs" / "compatibility.md"

Code = tuple[str, int]

_TO = {NAMESRV: "name server", BROKER: "broker"}
_TO_CLIENT = {
    39: ("CHECK_TRANSACTION_STATE", "not sent yet: transactions"),
    220: (
        "RESET_CONSUMER_CLIENT_OFFSET",
        "done; sent for queues of which no pull waits, which would have told the client",
    ),
    221: ("GET_CONSUMER_STATUS_FROM_CLIENT", "done"),
    307: ("GET_CONSUMER_RUNNING_INFO", "done"),
    309: ("CONSUME_MESSAGE_DIRECTLY", "done"),
    326: ("PUSH_REPLY_MESSAGE_TO_CLIENT", "not sent yet: request and reply"),
}
_NAMES_OF_4_9 = {50: "UPDATE_AND_CREATE_ACL_CONFIG"}


def all_results() -> list[Result]:
    """Play every conversation."""
    return [result_of(name) for name in capture.names()]


def unused_rules(results: Iterable[Result]) -> list[str]:
    """Return the rules that explain nothing any more."""
    used = {rule.id for one in _judged(results) for _, rule in one.deliberate}
    return [rule.id for rule in RULES if rule.id not in used]


def unused_later(results: Iterable[Result]) -> list[int]:
    """Return the codes said to come later that no conversation asks for."""
    asked = {one.exchange.code for one in _judged(results) if one.later}
    asked.update(code for result in results for _, code in (*result.oneway, *result.unanswered))
    return sorted(LATER.keys() - asked)


def page() -> str:
    """Return the page."""
    results = all_results()
    parts = [_head(results), _codes(results), _uncaptured(results), _differences(results)]
    return "\n\n".join(parts) + "\n"


def _judged(results: Iterable[Result]) -> list[Judged]:
    return [one for result in results for one in result.judged]


def _head(results: list[Result]) -> str:
    judged = _judged(results)
    later = sum(one.later for one in judged)
    equal = sum(one.equal for one in judged)
    follows = sum(one.follows for one in judged)
    deliberate = sum(bool(one.rules) and not one.follows for one in judged)
    oneway = sum(sum(result.oneway.values()) for result in results)
    unanswered = sum(sum(result.unanswered.values()) for result in results)
    whole = sum(result.whole for result in results)
    remarks = [one.exchange for one in judged if not one.later and one.exchange.captured.remark]
    same = sum(_plain(one.captured.remark) == _plain(one.ours.remark) for one in remarks)
    return f"""\
# Compatibility with Apache RocketMQ 5.3.3

This page is made by `python -m tests.golden.replay` and checked by the tests: do not edit it.

{len(results)} captured conversations between real clients (Java 5.3.3 and 4.9.8 with both header
serializers, Go 2.1.2, C++ 0.4.4, the admin tool, hand-made probes, and brokers that register) and
a real name server and broker of 5.3.3 are played against ours, and each answer is compared with the
real one. Of {whole} conversations every frame is known: there code, flag, fields with their values
and bodies are compared (ids, addresses, times and positions by their kind). The others are trimmed
to the first frames of each kind: there code, flag and names of fields are compared.

| | |
| --- | ---: |
| answered requests played | {len(judged)} |
| answered equally | {equal} |
| answered differently on purpose | {deliberate} |
| answered differently as a consequence, or for want of state that the capture lacks | {follows} |
| code that comes later, answered 3 | {later} |
| one-way requests played | {oneway} |
| requests played that the capture saw unanswered (held pulls, closed connections) | {unanswered} |
| remarks of compared answers that are equal, too, addresses aside | {same} of {len(remarks)} |"""


def _plain(remark: str | None) -> str:
    return ADDRESS.sub("", remark or "")


def _codes(results: list[Result]) -> str:
    by_code: dict[Code, list[Judged]] = {}
    for one in _judged(results):
        by_code.setdefault((one.exchange.request.peer, one.exchange.code), []).append(one)
    oneway: Counter[Code] = Counter()
    for result in results:
        oneway.update(result.oneway)
    lines = [
        "## Request codes",
        "",
        "| code | name | to | status | pairs | equal | on purpose | one-way |",
        "| ---: | --- | --- | --- | ---: | ---: | --- | ---: |",
    ]
    for peer, code in sorted(by_code.keys() | oneway.keys(), key=lambda key: (key[1], key[0])):
        judged = by_code.get((peer, code), [])
        rules = Counter(rule.id for one in judged for rule in one.rules)
        shown = ", ".join(f"{rule_id} {count}" for rule_id, count in sorted(rules.items()))
        lines.append(
            f"| {code} | {_name(code)} | {_TO[peer]} | {_status(peer, code, judged)} | "
            f"{len(judged)} | {sum(one.equal for one in judged)} | {shown} | "
            f"{oneway[peer, code] or ''} |"
        )
    captured = sum(result.notified_captured[40] for result in results)
    assert any(result.notified[40] for result in results), "nobody was notified in any replay"
    lines.append(
        f"| 40 | NOTIFY_CONSUMER_IDS_CHANGED | client | done; also sent when queue locks are freed "
        f"| | | | sent; {captured} in the trimmed capture |"
    )
    lines.extend(
        f"| {code} | {name} | client | {what} | | | | |"
        for code, (name, what) in sorted(_TO_CLIENT.items())
    )
    return "\n".join(lines)


def _status(peer: str, code: int, judged: list[Judged]) -> str:
    if peer == BROKER and code in LATER:
        return f"answered 3: {LATER[code]}"
    if judged and all(one.exchange.ours.code == one.exchange.captured.code == 3 for one in judged):
        return "answered 3 by both"
    partial = any(rule.partial for one in judged for _, rule in one.deliberate)
    return "partial" if partial else "done"


def _uncaptured(results: list[Result]) -> str:
    seen = {(one.exchange.request.peer, one.exchange.code) for one in _judged(results)} | {
        key for result in results for key in result.oneway
    }
    served = census()
    lines = [
        "## Codes that no conversation asks for",
        "",
        "| code | name | name server | broker |",
        "| ---: | --- | --- | --- |",
    ]
    for code in RequestCode:
        if (NAMESRV, code) in seen or (BROKER, code) in seen:
            continue
        shown = ["served" if served[peer, code] else "answered 3" for peer in (NAMESRV, BROKER)]
        if "served" in shown:
            lines.append(f"| {int(code)} | {code.name} | {shown[0]} | {shown[1]} |")
    lines += ["", "All further codes are answered 3 by both."]
    return "\n".join(lines)


def _differences(results: list[Result]) -> str:
    pairs: Counter[str] = Counter()
    codes: dict[str, set[int]] = {}
    for one in _judged(results):
        for rule_id in {rule.id for _, rule in one.deliberate}:
            pairs[rule_id] += 1
            codes.setdefault(rule_id, set()).add(one.exchange.code)
    lines = ["## Deliberate differences", ""]
    lines += _table([rule for rule in RULES if not rule.state], pairs, codes)
    lines += [
        "",
        "## Consequences, and state that the capture lacks",
        "",
        "Answers that could not be the same, after what was answered otherwise before, or since "
        "frames that led to them are in another conversation or were left out:",
        "",
    ]
    lines += _table([rule for rule in RULES if rule.state], pairs, codes)
    return "\n".join(lines)


def _table(rules: list[Rule], pairs: Counter[str], codes: dict[str, set[int]]) -> list[str]:
    lines = ["| rule | codes | pairs | what, and why |", "| --- | --- | ---: | --- |"]
    for rule in rules:
        found = sorted(codes.get(rule.id, ()))
        shown = ", ".join(map(str, found)) if len(found) <= 8 else f"{len(found)} codes"
        lines.append(f"| {rule.id} | {shown} | {pairs[rule.id]} | {rule.reason} |")
    return lines


def _name(code: int) -> str:
    try:
        return RequestCode(code).name
    except ValueError:
        return _NAMES_OF_4_9.get(code, "(made up)")
