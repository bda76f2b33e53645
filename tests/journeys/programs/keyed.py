"""Messages in the order of keys; a key whose message fails twice is parked."""

import ledger

import inorder

consumer = inorder.Consumer(group="billing", consume_from="first")


@consumer.on("orders", order="key", concurrency=16, on_failure=inorder.Park(attempts=2))
def charge(message):
    with ledger.effect(message):
        ledger.work()
        if message.key == "k5" and message.body.endswith(b"-3"):
            raise ValueError("this card is broken")


consumer.run()
