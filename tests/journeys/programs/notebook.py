"""Cells of a notebook: blocking calls under a running event loop, and nothing is ever closed."""

import asyncio
import os
import time

import ledger

import inorder

handled = set()
names = {}  # what the cells define, and nobody closes


async def cell_1() -> None:
    names["producer"] = producer = inorder.Producer()
    for number in range(ledger.COUNT // 10):
        body = f"n{os.getpid()}-{number}"
        ledger.tries(body)
        producer.send("orders", body.encode(), key=f"n{os.getpid()}")
        ledger.stored(body)


async def cell_2() -> None:
    names["consumer"] = consumer = inorder.Consumer(group="billing", consume_from="first")

    @consumer.on("orders")
    def look(message):
        with ledger.effect(message):
            handled.add(message.body)

    consumer.start()


async def cell_3() -> None:
    while f"n{os.getpid()}-{ledger.COUNT // 10 - 1}".encode() not in handled:
        time.sleep(0.05)  # noqa: ASYNC251 - as in a cell


async def kernel() -> None:
    for cell in (cell_1, cell_2, cell_3):
        await cell()


asyncio.run(kernel())
