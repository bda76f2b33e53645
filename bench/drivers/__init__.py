"""Client programs that the benchmark times, one per client library.

Each takes the name server (the bare socket: the broker) as its first argument, then lines
`run MODE WINDOW SECONDS` on standard input, and answers each with one line of JSON behind `@ `. The
work is the same in all: 200-byte bodies with a tag and a key word, to the eight queues in turn.
`pyours`, `pyconfluent` and `pyaiokafka` are told `produce` or `consume`, and check what came of it
(`traffic.py`).
"""
