"""No order: many handlers at a time, and some messages have to come again."""

import ledger

import inorder

consumer = inorder.Consumer(group="billing", consume_from="first")


@consumer.on("orders", order=None, concurrency=8)
def bill(message):
    with ledger.effect(message):
        ledger.work()
        if message.body.endswith(b"7") and message.attempt == 1:
            raise inorder.Retry(after=1)


consumer.run()
