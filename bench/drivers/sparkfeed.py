"""Fills a topic for `python -m bench spark`, at once or at a rate.

python -m bench.drivers.sparkfeed NAMESRV TOPIC COUNT [MESSAGES_PER_S]
"""

from __future__ import annotations

import sys
import time

import inorder
from bench.drivers.sparkwork import body_of, key_of
from inorder.model import Message

AT_ONCE = 2000


def main() -> None:
    """Send."""
    namesrv, topic, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    per_s = int(sys.argv[4]) if len(sys.argv) > 4 else None
    with inorder.Producer(namesrv) as producer:
        if per_s is None:
            for start in range(0, count, AT_ONCE):
                end = min(start + AT_ONCE, count)
                producer.send_batch(
                    [Message(topic, body_of(at), key=key_of(at)) for at in range(start, end)]
                )
            return
        began = time.monotonic()
        for at in range(count):
            producer.send(topic, body_of(at), key=key_of(at))
            ahead_s = (at + 1) / per_s - (time.monotonic() - began)
            if ahead_s > 0:
                time.sleep(ahead_s)


if __name__ == "__main__":
    main()
