"""A consumer beside something else that the program does, in a `with` block."""

import signal
import threading

import ledger

import inorder

stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())

consumer = inorder.Consumer(group="billing", consume_from="first")


@consumer.on("orders", batch=4)
def bill(messages):
    for message in messages:
        with ledger.effect(message):
            ledger.work()


with consumer:
    while not stop.wait(0.1):
        consumer.statistics()
