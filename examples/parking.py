"""Billing that parks: customers who cannot be billed wait in order, all others go on.

    inorder up                                # in another terminal
    python examples/parking.py bills.db       # the service
    printf 'anna:10\nbert:7\nbert:5\n' | inorder send payments --key-separator :
    inorder parked billing                    # anna and bert: nobody knows them yet
    python examples/parking.py bills.db add bert
    inorder redrive billing bert --wait       # billed in order; later payments go the usual way

The service may be stopped and killed at any time: what is parked is in the broker.
"""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing

import inorder

TABLES = """
CREATE TABLE IF NOT EXISTS customers (name TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS bills (
    customer TEXT, sequence INTEGER, amount INTEGER, PRIMARY KEY (customer, sequence)
);"""


def bill(customer: str, sequence: int | None, amount: int) -> None:
    """Bill a payment once: its fence is the key of the row. Raises LookupError."""
    with closing(sqlite3.connect(sys.argv[1], timeout=30)) as database, database:
        if not database.execute("SELECT 1 FROM customers WHERE name = ?", [customer]).fetchall():
            raise LookupError(f"{customer} is no customer")
        if sequence is None:
            raise ValueError("no sequence: it was sent past the key map")
        row = (customer, sequence, amount)
        database.execute("INSERT OR IGNORE INTO bills VALUES (?, ?, ?)", row)
    print("billed", customer, amount, flush=True)


def serve() -> None:
    """Bill payments until SIGTERM or Ctrl-C."""
    consumer = inorder.Consumer(group="billing", consume_from="first")

    @consumer.on("payments", order="key", concurrency=16, on_failure=inorder.Park(attempts=2))
    def pay(message: inorder.ReceivedMessage) -> None:
        try:
            bill(message.key, message.fence.sequence, int(message.body))
        except LookupError as error:
            raise inorder.Reject(str(error)) from error  # more attempts would not help: park now

    consumer.run()


if __name__ == "__main__":
    with closing(sqlite3.connect(sys.argv[1])) as first, first:
        first.executescript(TABLES)
        if sys.argv[2:3] == ["add"]:
            first.execute("INSERT OR IGNORE INTO customers VALUES (?)", sys.argv[3:4])
    if len(sys.argv) == 2:
        serve()
