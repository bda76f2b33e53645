"""An order service: every event changes the database once and in order, whatever is killed when.

    inorder up                                  # in another terminal
    python examples/order_service.py orders.db  # as often as you like, at the same time, too

Ctrl-C or SIGTERM stops it when the running handlers have ended. After a kill the next start
continues. Python 3.11 and inorder are all it needs.
"""

from __future__ import annotations

import sqlite3
import sys
import threading

import inorder

TABLE = """
CREATE TABLE IF NOT EXISTS orders (
    id TEXT PRIMARY KEY, state TEXT, events INTEGER DEFAULT 0, sequence INTEGER DEFAULT -1
)"""
# The fence: an event that was applied before changes no row. Its number is stored with its effect.
APPLY = """
UPDATE orders SET state = :state, events = events + 1, sequence = :sequence
WHERE id = :id AND sequence < :sequence"""

consumer = inorder.Consumer(group="order-service", consume_from="first")
databases = threading.local()  # handlers of different orders run in different threads


def database() -> sqlite3.Connection:
    """Return this thread's connection."""
    if not hasattr(databases, "mine"):
        databases.mine = sqlite3.connect(sys.argv[1], timeout=30)
    return databases.mine


@consumer.on("orders", order="key", concurrency=8, on_failure=inorder.Park(attempts=5))
def apply(message: inorder.ReceivedMessage) -> None:
    """Apply an event to its order: both statements and the fence in one transaction, or nothing."""
    if message.fence.sequence is None:
        raise inorder.Reject("no sequence: it was sent past the key map")  # parks the order
    event = {
        "id": message.key,
        "state": message.body.decode(),
        "sequence": message.fence.sequence,
    }
    with database() as transaction:
        transaction.execute("INSERT OR IGNORE INTO orders (id) VALUES (:id)", event)
        changed = transaction.execute(APPLY, event).rowcount
    verdict = "applied" if changed else "known already:"
    print(f"{verdict} {event['id']} {event['state']}", flush=True)


if __name__ == "__main__":
    with sqlite3.connect(sys.argv[1]) as first:
        first.execute("PRAGMA journal_mode = WAL")
        first.execute(TABLE)
    first.close()
    consumer.run()  # until SIGTERM or Ctrl-C
