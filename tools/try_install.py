"""Tries the install of the Python that runs this: is it compiled, does a broker start and serve?

    python tools/try_install.py [--pure]

It needs nothing but the install. It starts `inorder up` on free ports with the compilers hidden,
sends messages, reads them back in order and stops the servers. `--pure` expects an install without
the compiled module that says so in its log.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from importlib.metadata import requires, version
from pathlib import Path

COUNT = 500
SECONDS_MAX = 60


def main(pure: bool) -> None:
    """Try it, and say what was found."""
    import inorder
    from inorder.accelerated import native, reason, slower_parts

    place = Path(inorder.__file__).parent
    if "site-packages" not in place.parts:
        raise SystemExit(f"this is no install, but {place}")
    if (native is None) is not pure:
        raise SystemExit(f"compiled module: {reason}")
    if not pure and (slower := slower_parts()):
        raise SystemExit(f"slower than it could be: {slower}")
    for package in ("isal", "uvloop"):
        if not any(line.startswith(package) and "extra" not in line for line in _required()):
            raise SystemExit(f"{package} is no ordinary dependency")
    log = _try_servers()
    if ("pure Python instead of the compiled module" in log) is not pure:
        raise SystemExit(f"what the servers say of the compiled module is wrong:\n{log}")
    print(f"inorder {version('inorder')} on Python {sys.version.split()[0]}, compiled: {reason}")


def _required() -> list[str]:
    return requires("inorder") or []


def _try_servers() -> str:
    """Send to new servers and read back; return what they logged."""
    import inorder

    words = ("up", "--namesrv-port", "0", "--broker-port", "0", "-o", "json")
    with tempfile.TemporaryDirectory() as folder:
        servers = subprocess.Popen(  # noqa: S603 - ourselves
            [sys.executable, "-m", "inorder.cli.main", *words],
            cwd=folder,
            env={**os.environ, "PATH": str(Path(sys.executable).parent)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert servers.stdout is not None
            namesrv = json.loads(servers.stdout.readline())["namesrv"]
            sent = [str(number).encode() for number in range(COUNT)]
            with inorder.Producer(namesrv) as producer:
                receipts = [producer.send_nowait("Tried", body, key="k") for body in sent]
                queue = receipts[-1].result(SECONDS_MAX).queue
            with inorder.PullConsumer(namesrv, group="try") as consumer:
                found = [message.body for message in consumer.pull_all(queue)]
            if found != sent:
                raise SystemExit(f"{len(sent)} messages were sent, {len(found)} read, or reordered")
        finally:
            servers.send_signal(signal.SIGTERM)
            _, log = servers.communicate(timeout=SECONDS_MAX)
    if servers.returncode != 0:
        raise SystemExit(f"the servers ended with {servers.returncode}:\n{log}")
    return log


if __name__ == "__main__":
    main(pure="--pure" in sys.argv[1:])
