"""A job: hand over fifty thousand messages, and end."""

import os

import ledger

import inorder

producer = inorder.Producer()
for number in range(ledger.COUNT):
    key = f"j{os.getpid()}x{number % 50}"
    body = f"{key}-{number // 50}"
    ledger.tries(body)
    producer.send_nowait("orders", body.encode(), key=key)
