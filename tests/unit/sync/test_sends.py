"""The future of a blocking `send_nowait`."""

from __future__ import annotations

import gc
import threading

import pytest

from inorder.sync.producer import SendFuture


def test_ctrl_c_while_a_future_is_made_leaves_nothing_to_say(monkeypatch):
    """What was not made is dropped in silence; the interrupt goes on."""

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(threading, "Condition", interrupted)
    unraisable: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", unraisable.append)
    with pytest.raises(KeyboardInterrupt):
        SendFuture(None, None, None, None, message=("t", None), size=0)  # type: ignore[arg-type]
    gc.collect()
    assert unraisable == []
