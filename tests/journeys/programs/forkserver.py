"""A server that forks workers; each has a consumer of its own, all in one group."""

import os
import signal
import sys

import ledger

import inorder

producer = inorder.Producer()  # of the parent; a child makes its own
producer.send("audit", b"the server starts")


def worker() -> None:
    consumer = inorder.Consumer(group="billing", consume_from="first", instance=str(os.getpid()))

    @consumer.on("orders")
    def bill(message):
        with ledger.effect(message):
            ledger.work()

    consumer.run()


children = set()
for _ in range(2):
    child = os.fork()
    if child == 0:
        worker()
        sys.exit(0)
    children.add(child)


def forward(number: int, frame: object) -> None:
    for pid in children:
        os.kill(pid, signal.SIGTERM)


signal.signal(signal.SIGTERM, forward)
signal.signal(signal.SIGINT, forward)
codes = []
while children:
    pid, status = os.wait()
    children.discard(pid)
    codes.append(os.waitstatus_to_exitcode(status))
producer.close()
sys.exit(max(map(abs, codes)))
