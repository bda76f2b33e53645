"""`inorder broker` in a process of its own, which writes down whom it grants what, and when.

    python -m tests.crash.stormbroker FILE broker --port ...

The broker is the real one; a line is written after each grant, before it is answered.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from inorder.broker.leases.service import LeaseService
from inorder.checker import Granted, queue_name
from inorder.checker.events import write_history
from inorder.cli import main
from inorder.model import TopicQueue


def watch(path: str) -> None:
    """Let grants be written to a file."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    lease = LeaseService.lease

    def noted(self: LeaseService, group: str, owner: Any, *rest: Any) -> Any:
        answer = lease(self, group, owner, *rest)
        at_ns = time.monotonic_ns()
        for grant in answer.granted:
            if grant.fresh:
                queue = TopicQueue(grant.topic, self._broker.config.name, grant.queue)
                event = Granted(client_name(owner.client_id), queue_name(queue), grant.epoch, at_ns)
                os.write(file, "".join(f"{line}\n" for line in write_history([event])).encode())
        return answer

    LeaseService.lease = noted  # type: ignore[method-assign]


def client_name(client_id: str) -> str:
    """Return the instance name in a client id, which is the name of the process here."""
    return client_id.partition("@")[2].partition("#")[0]


if __name__ == "__main__":
    watch(sys.argv.pop(1))
    main.main()
