"""Consume, transform, produce, with the blocking API."""

import ledger

import inorder

consumer = inorder.Consumer(group="billing", consume_from="first")

with inorder.Producer() as producer:

    @consumer.on("orders")
    def ship(message):
        with ledger.effect(message):
            producer.send("shipped", message.body, key=message.key)

    consumer.run()
