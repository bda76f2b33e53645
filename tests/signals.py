"""What the programs that tests start do with signals."""

from __future__ import annotations

import signal


def hear_ctrl_c() -> None:
    """Have SIGINT end this process and the programs that it starts, as in a terminal.

    A shell without job control starts what it puts into the background with SIGINT ignored; every
    program inherits that, and Python then leaves it so.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
