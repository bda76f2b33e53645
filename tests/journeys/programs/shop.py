"""A module for `inorder consume shop:consumer`."""

import ledger

import inorder

consumer = inorder.Consumer(group="billing", consume_from="first")
producer = inorder.Producer()


@consumer.on("orders", order="key", concurrency=8)
def ship(message):
    with ledger.effect(message):
        producer.send("shipped", message.body, key=message.key)
