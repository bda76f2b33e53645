"""A consumer beside something else that the program does, in a `with` block."""

import signal
import sys
import time

import ledger

import inorder

signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))

consumer = inorder.Consumer(group="billing", consume_from="first")


@consumer.on("orders", batch=4)
def bill(messages):
    for message in messages:
        with ledger.effect(message):
            ledger.work()


with consumer:
    while True:
        consumer.statistics()
        time.sleep(0.1)
