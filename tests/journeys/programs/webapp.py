"""An async web application: requests are sent, a background task consumes."""

import asyncio
import os
import signal

import ledger

import inorder.aio


async def main() -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    consumer = inorder.aio.Consumer(group="billing", consume_from="first")

    @consumer.on("orders")
    async def bill(message) -> None:
        with ledger.effect(message):
            await asyncio.sleep(0.001)

    async with inorder.aio.Producer() as producer:
        background = asyncio.create_task(consumer.run())
        requests = asyncio.create_task(serve(producer))
        await stop.wait()
        requests.cancel()
        background.cancel()
        await asyncio.gather(requests, background, return_exceptions=True)


async def serve(producer: inorder.aio.Producer) -> None:
    """What requests do: each key has its own client, which waits for its answer."""

    async def client(key: str) -> None:
        for number in range(ledger.COUNT // 8):
            body = f"{key}-{number}"
            ledger.tries(body)
            try:
                await producer.send("orders", body.encode(), key=key)
                ledger.stored(body)
            except inorder.InorderError:
                ledger.unknown(body)
                return  # this client does not come again

    await asyncio.gather(*(client(f"w{os.getpid()}x{number}") for number in range(8)))


asyncio.run(main())
