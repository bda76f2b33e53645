"""A pool of threads that send by one producer, and wait for each receipt."""

import os
from concurrent.futures import ThreadPoolExecutor

import ledger

import inorder


def customer(key: str) -> None:
    for number in range(ledger.COUNT // 8):
        body = f"{key}-{number}"
        ledger.tries(body)
        try:
            producer.send("orders", body.encode(), key=key)
        except inorder.InorderError:
            ledger.unknown(body)
            return
        ledger.stored(body)


with inorder.Producer() as producer, ThreadPoolExecutor(4) as pool:
    list(pool.map(customer, [f"t{os.getpid()}x{number}" for number in range(8)]))
