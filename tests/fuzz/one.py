"""One target in this process, under atheris: `python -m tests.fuzz.one NAME [options]`."""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["inorder"]):
    from tests.fuzz import targets


def main() -> None:
    """Give the process to libFuzzer."""
    chosen = targets.TARGETS[sys.argv.pop(1)]
    atheris.Setup(sys.argv, chosen)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
