"""Lines for `inorder send orders --key-separator :`, as some other program writes them."""

import os
import sys

import ledger

for number in range(ledger.COUNT):
    key = f"s{os.getpid()}x{number % 10}"
    body = f"{key}-{number // 10}"
    ledger.tries(body)
    sys.stdout.write(f"{key}:{body}\n")
    sys.stdout.flush()
