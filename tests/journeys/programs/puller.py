"""A loop of the program's own: poll, handle, commit."""

import signal

import ledger

import inorder

stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(True))

with inorder.PullConsumer(group="billing", consume_from="first") as consumer:
    consumer.subscribe("orders")
    while not stop:
        messages = consumer.poll(timeout=0.2)
        for message in messages:
            with ledger.effect(message):
                ledger.work()
        try:
            consumer.commit()
        except inorder.InorderError as error:
            print("not committed now, but with the next ones:", error)
