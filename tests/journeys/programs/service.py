"""The README's service: a consumer that runs until it is told to end."""

import ledger

import inorder

consumer = inorder.Consumer(group="billing", consume_from="first")


@consumer.on("orders")
def bill(message):
    with ledger.effect(message):
        ledger.work()


consumer.run()
