"""Lines for `inorder send orders --key-separator :`, as some other program writes them."""

import os
import sys

import ledger

try:
    for number in range(ledger.COUNT):
        key = f"s{os.getpid()}x{number % 10}"
        body = f"{key}-{number // 10}"
        ledger.tries(body)
        sys.stdout.write(f"{key}:{body}\n")
        sys.stdout.flush()
except BrokenPipeError:  # the reader ended; at its end Python would flush once more, and complain
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(1)
