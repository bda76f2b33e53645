"""Order by key against its promise, over random schedules of handlers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inorder.client.consume.rules.keyed import KeyOrder, Work
from inorder.client.consume.rules.queue import QueueProgress
from inorder.model import ReceivedMessage, TopicQueue
from inorder.ordering.finished import FinishedMap

QUEUE = TopicQueue("orders", "broker-a", 0)


@given(
    st.lists(st.sampled_from(["a", "b", "c", None]), max_size=30),
    st.sampled_from(["barrier", "concurrent"]),
    st.integers(1, 4),
    st.data(),
)
def test_every_key_is_handled_in_order_once(keys, keyless, batch, data) -> None:  # type: ignore[no-untyped-def]
    """Per key in order and one at a time; barriers alone; the commit passes nothing unfinished."""
    queue = QueueProgress(0, keys=KeyOrder(lambda found: found.key, keyless=keyless))
    running: list[Work] = []
    done: set[int] = set()
    fed, now_ms = 0, 0
    for _ in range(1000):
        if len(done) == len(keys):
            break
        step = data.draw(st.sampled_from(["put", "take", "done", "again", "narrow"]))
        if step == "put" and fed < len(keys):
            until = data.draw(st.integers(fed + 1, len(keys)))
            queue.put([_message(at, keys[at]) for at in range(fed, until)], until)
            fed = until
        elif step == "take":
            work = queue.take_work(now_ms, batch=batch)
            if work is not None:
                _check_allowed(work, keys, keyless, done, running)
                running.append(work)
        elif running:
            work = running.pop(data.draw(st.integers(0, len(running) - 1)))
            if step == "again":
                queue.again(work, now_ms + data.draw(st.integers(0, 3)))
            elif step == "narrow":
                count = data.draw(st.integers(0, len(work.messages) - 1))
                done |= {message.offset for message in work.messages[:count]}
                keep = data.draw(st.integers(1, len(work.messages) - count))
                queue.narrow(work, now_ms, done=count, keep=keep)
                assert len(work.messages) == keep
                running.append(work)
            else:
                count = data.draw(st.integers(0, len(work.messages)))
                queue.done(work, now_ms, count)
                done |= {message.offset for message in work.messages[:count]}
        else:
            now_ms += 1
        lowest = next((at for at in range(fed) if at not in done), fed)
        said = queue.progress()
        assert said.offset == lowest
        assert set(FinishedMap.decode(said.finished or "0:0").above) == {
            at for at in done if at > lowest
        }
        assert queue.count == fed - len(done)


def _message(offset: int, key: str | None) -> ReceivedMessage:
    properties = {} if key is None else {"__SHARDINGKEY": key}
    return ReceivedMessage("orders", QUEUE, offset, b"x", properties, str(offset), 0, 0)


def _check_allowed(
    work: Work, keys: list[str | None], keyless: str, done: set[int], running: list[Work]
) -> None:
    busy = {message.offset for other in running for message in other.messages}
    for message in work.messages:
        offset, key = message.offset, keys[message.offset]
        assert offset not in done
        assert offset not in busy
        own = {found.offset for found in work.messages}
        for earlier in range(offset):
            if earlier in done or earlier in own:
                continue
            assert keys[earlier] != key or (key is None and keyless == "concurrent")
            if keyless == "barrier":
                assert key is not None
                assert keys[earlier] is not None
    if work.key is None:
        assert len(work.messages) == 1
