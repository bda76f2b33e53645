"""Message traces as Java's clients write them and its tools read them."""

from __future__ import annotations

from inorder.client.rules.traces import (
    BYTES_MAX,
    KEYS_BYTES_MAX,
    Trace,
    Traced,
    begun,
    cut,
    ended,
    sent,
    views_of,
)

MESSAGE = Traced("ID1", ("k1", "k2"), 3)


def test_a_send_has_fourteen_fields() -> None:
    """TraceDataEncoder.encoderFromContextBean, Pub."""
    trace = sent(
        at_ms=5, group="pg", topic="orders", message=MESSAGE, tag="paid",
        store_host="1.2.3.4:10911", body_bytes=7, spent_ms=2, success=True,
    )  # fmt: skip
    assert trace.text == "\x01".join(
        ["Pub", "5", "DefaultRegion", "pg", "orders", "ID1", "paid", "k1 k2", "1.2.3.4:10911", "7",
         "2", "0", "", "true"]
    ) + "\x02"  # fmt: skip
    assert trace.keys == ("ID1", "k1", "k2")
    bare = sent(
        at_ms=5, group="pg", topic="orders", message=Traced("ID1"), tag=None, store_host="null",
        body_bytes=7, spent_ms=2, success=False,
    )  # fmt: skip
    assert bare.text.split("\x01")[6:8] == ["null", "null"]
    assert bare.text.endswith("false\x02")


def test_a_call_of_a_handler_has_two_traces() -> None:
    """SubBefore with the attempt, SubAfter with the result; the same id joins them."""
    first = begun(at_ms=5, group="cg", call_id="c", message=MESSAGE)
    assert first.text == "SubBefore\x015\x01DefaultRegion\x01cg\x01c\x01ID1\x013\x01k1 k2\x02"
    last = ended(
        at_ms=9, group="cg", call_id="c", message=MESSAGE, spent_ms=4, success=False,
        return_type="EXCEPTION",
    )  # fmt: skip
    assert last.text == "SubAfter\x01c\x01ID1\x014\x01false\x01k1 k2\x012\x019\x01cg\x02"


def test_traces_share_messages_up_to_a_size() -> None:
    """Each message has the keys of its traces, each key once."""
    small = [Trace(f"{n}\x02", ("a", str(n))) for n in range(3)]
    assert cut(small) == [("0\x021\x022\x02", ("a", "0", "1", "2"))]
    large = [Trace("x" * (BYTES_MAX - 10), ("l",)), *small[:2], Trace("y" * BYTES_MAX, ("m",))]
    assert [(len(body), keys) for body, keys in cut(large)] == [
        (BYTES_MAX - 6, ("l", "a", "0", "1")), (BYTES_MAX, ("m",)),
    ]  # fmt: skip
    assert cut([]) == []


def test_traces_of_messages_with_many_keys_fit_into_the_properties() -> None:
    """A broker refuses more; then a hundred traces would be lost at once."""
    many = [Trace(f"{n}\x02", (f"ID{n}", *(f"{n}-{k}" * 20 for k in range(4)))) for n in range(100)]
    found = cut(many)
    assert "".join(body for body, _ in found) == "".join(one.text for one in many)
    assert [key for _, keys in found for key in keys] == [key for one in many for key in one.keys]
    assert len(found) > 1
    ((body, keys),) = cut([Trace("x\x02", ("ID", "k" * 20_000, "l" * 20_000, "m"))])
    assert (body, keys) == ("x\x02", ("ID", "k" * 20_000, "m"))
    for _, given in (*found, (body, keys)):
        assert len(" ".join(given).encode()) < KEYS_BYTES_MAX


def test_traces_are_read_back() -> None:
    """Those of the message only; what another client has cut or written otherwise is left out."""
    pub = sent(
        at_ms=5, group="pg", topic="orders", message=MESSAGE, tag="paid", store_host="h:1",
        body_bytes=7, spent_ms=2, success=True,
    )  # fmt: skip
    first = begun(at_ms=6, group="cg", call_id="c", message=MESSAGE)
    last = ended(
        at_ms=9, group="cg", call_id="c", message=MESSAGE, spent_ms=3, success=False,
        return_type="FAILED",
    )  # fmt: skip
    other = begun(at_ms=6, group="cg", call_id="d", message=Traced("ID2"))
    garbage = "Pub\x01x\x02SubAfter\x02\x02Pub\x01y\x01r\x01g\x01t\x01ID1\x02"
    body = f"{garbage}{pub.text}{other.text}{first.text}{last.text}"
    found = views_of(body.encode(), "ID1")
    assert [(one.kind, one.at_ms, one.group, one.success) for one in found] == [
        ("Pub", 5, "pg", True), ("SubBefore", 6, "cg", None), ("SubAfter", 9, "cg", False),
    ]  # fmt: skip
    assert (found[0].topic, found[0].broker, found[0].spent_ms) == ("orders", "h:1", 2)
    assert found[1].attempt == 4
    assert found[1].call_id == found[2].call_id == "c"
