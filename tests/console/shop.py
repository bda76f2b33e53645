"""A shop whose billing has a broken customer: what the browser tests look at. A program.

    python -m tests.console.shop NAMESRV

It says `filled` when the cluster is as the tests want it, then sends and handles on. `mend` on its
standard input repairs the handler; the end of its input ends it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys

import inorder
import inorder.aio

BROKEN = ("order-42", "order-44")
STEPS = ("created", "paid", "shipped")
HOSTILE = "<script>document.title='hacked'</script>\"'><img src=x onerror=alert(1)>"


class Shop:
    """Its topics, its consumers and its broken customer."""

    def __init__(self, namesrv: str) -> None:
        self.namesrv = namesrv
        self.mended = False

    async def bill(self, message: inorder.ReceivedMessage) -> None:
        """Handle a message, unless its customer is broken."""
        await asyncio.sleep(0.01)
        if message.key in BROKEN and not self.mended:
            raise ValueError(f"no such customer {HOSTILE}")

    async def send(self, producer: inorder.aio.Producer, step: int) -> None:
        """Send one message of each order."""
        for order in range(40, 52):
            body = json.dumps({"order": order, "step": STEPS[step % 3], "note": HOSTILE}).encode()
            await producer.send(
                "orders", body, key=f"order-{order}", tag=STEPS[step % 3], keys=(f"o{order}",)
            )

    async def run(self) -> None:
        """Fill the cluster, then go on until the input ends."""
        async with inorder.aio.Admin(self.namesrv) as admin:
            await admin.topics.create("orders", queues=4)
            await admin.topics.create("payments", queues=2)
            await admin.topics.create("post", queues=1)
        async with inorder.aio.Producer(self.namesrv, group="shop", trace=True) as producer:
            for step in range(2):
                await self.send(producer, step)
            reports = inorder.aio.Consumer(self.namesrv, group="reports", consume_from="first")
            reports.on("payments", order="key")(_read)
            await producer.send("payments", b"1", key="account-1")
            await reports.start()
            await asyncio.sleep(1.5)
            await reports.close()
            for number in range(40):
                await producer.send("payments", b"%d" % number, key=f"account-{number % 7}")
            for number in range(6):
                await producer.send("post", b"%d" % number, key=f"customer-{number % 2}")
            billing = inorder.aio.Consumer(
                self.namesrv, group="billing", trace=True, consume_from="first"
            )
            billing.on("orders", order="key", on_failure=inorder.Park(attempts=1))(self.bill)
            await billing.start()
            mailing = inorder.aio.Consumer(self.namesrv, group="mailing", consume_from="first")
            mailing.on("post", on_failure=inorder.DeadLetter(attempts=0))(_mail)
            await mailing.start()
            await asyncio.sleep(3)
            print("filled", flush=True)
            await asyncio.gather(self._tick(producer), self._orders())
            await billing.close()
            await mailing.close()

    async def _orders(self) -> None:
        """Follow the lines on standard input."""
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            self.mended = line.strip() == b"mend"
            print(line.decode().strip(), flush=True)
        self.namesrv = ""

    async def _tick(self, producer: inorder.aio.Producer) -> None:
        while self.namesrv:
            await producer.send("orders", b'{"order": 99}', key="order-99", tag="tick")
            await asyncio.sleep(0.2)


async def _mail(message: inorder.ReceivedMessage) -> None:
    if message.key == "customer-1":
        raise ValueError(f"no such address {HOSTILE}")


async def _read(message: inorder.ReceivedMessage) -> None: ...


if __name__ == "__main__":
    logging.getLogger("inorder").setLevel(logging.CRITICAL)
    asyncio.run(Shop(sys.argv[1]).run())
