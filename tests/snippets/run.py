"""Run the examples of pages as a reader pastes them: block by block, in one session a page.

    python -m tests.snippets.run [PAGE…]

Each page gets a broker of its own, an interpreter of its own, and a folder of its own. Its Python
blocks go into the one interpreter, its shell blocks to bash, its tests to pytest, in their order.
Only the address `127.0.0.1:9876` is replaced by that of the broker: its ports are any. If the page
starts a server that stays, it is the address of that one from then on.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import inorder.testing
from tests.signals import hear_ctrl_c
from tests.snippets.pages import PYTHON, ROOT, SPARK, TEST, Block, blocks, pages

BLOCK_SECONDS = 300
SPARK_SECONDS = 900
LOCAL = "127.0.0.1:9876"
# asyncio in its development mode also complains of a machine that is busy with something else.
_BUSY = re.compile(r"^Executing <")
_SESSION = """
import json, sys, traceback, warnings
space = {"__name__": "__main__"}
for line in sys.stdin:
    block = json.loads(line)
    try:
        exec(compile(block["text"], block["where"], "exec"), space)
    except BaseException:
        traceback.print_exc()
        print("\\0raised", file=sys.__stdout__, flush=True)
    else:
        sys.stdout.flush()
        print("\\0done", file=sys.__stdout__, flush=True)
"""


_DONE, _RAISED = b"\0done\n", b"\0raised\n"


class Failed(Exception):
    """A block did not do what it says."""


class Session:
    """One interpreter, one folder, one broker: what a reader has open."""

    def __init__(self, namesrv: str, folder: Path, *, with_spark: bool) -> None:
        self._namesrv = namesrv
        self._folder = folder
        self._staying: list[subprocess.Popen[str]] = []
        tools = folder / ".bin"
        tools.mkdir()
        tool = tools / "inorder"
        tool.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m inorder.cli.main "$@"\n')
        tool.chmod(0o755)
        self._env = {
            **os.environ,
            "PATH": f"{tools}:{os.environ['PATH']}",
            "HOME": str(folder),
            "PYTHONPATH": f"{ROOT / 'src'}",
            "INORDER_NAMESRV": namesrv,
            # Many short commands: compiled once, wherever bytecode may not be kept otherwise.
            "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONPYCACHEPREFIX": str(ROOT / "build" / "bytecode"),
            # A server that a page starts gets any free ports, too.
            "INORDER_NAMESERVER__PORT": "0",
            "INORDER_BROKER__PORT": "0",
        }
        # Spark has much to say on stderr, also in good health, and takes its time.
        self._strict = not with_spark
        self._seconds = SPARK_SECONDS if with_spark else BLOCK_SECONDS
        strict = ["-X", "dev", "-W", "error"] if self._strict else []
        with (folder / ".stderr").open("w") as errors:
            self._python = subprocess.Popen(
                [sys.executable, *strict, "-u", "-c", _SESSION],
                cwd=folder, env=self._env, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
            )  # fmt: skip

    def close(self) -> None:
        """End the interpreter as Ctrl-D does; raises Failed if it does not end, or complains."""
        self._end_staying()
        assert self._python.stdin is not None
        self._python.stdin.close()
        try:
            code = self._python.wait(self._seconds)
        except subprocess.TimeoutExpired:
            self._python.kill()
            self._python.wait()
            raise Failed("the interpreter does not end: something of the page still runs") from None
        finally:
            if self._python.stdout is not None:
                self._python.stdout.close()
        complaints = self._complaints()
        if code or (complaints and self._strict):
            raise Failed(f"the interpreter ended with {code} and these words:\n{complaints}")

    def kill(self) -> None:
        """End the interpreter, whatever it does."""
        for process in self._staying:
            process.kill()
            process.communicate()
        self._python.kill()
        self._python.communicate()

    def _end_staying(self) -> None:
        """Stop the servers of the page as Ctrl-C does; raises Failed if one does not end well."""
        for process in self._staying:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=BLOCK_SECONDS)
            if process.returncode:
                raise Failed(f"a server of the page ended with {process.returncode}")

    def run(self, block: Block) -> str:
        """Run a block; return what it printed. Raises Failed."""
        text = block.text.replace(LOCAL, self._namesrv)
        if block.saved_as:
            (self._folder / block.saved_as).write_text(text)
            return ""
        if block.kind == PYTHON:
            return self._paste(block, text)
        return self._shell(block, text)

    def _paste(self, block: Block, text: str) -> str:
        assert self._python.stdin is not None
        assert self._python.stdout is not None
        self._python.stdin.write(json.dumps({"where": block.where, "text": text}) + "\n")
        self._python.stdin.flush()
        printed = b""
        ends = time.monotonic() + self._seconds
        while True:
            patience = max(0.0, ends - time.monotonic())
            ready, _, _ = select.select([self._python.stdout], [], [], patience)
            more = os.read(self._python.stdout.fileno(), 65536) if ready else b""
            printed += more
            text = printed.decode(errors="replace")
            if printed.endswith(_DONE):
                return text[: -len(_DONE)]
            if printed.endswith(_RAISED):
                raise Failed(text[: -len(_RAISED)] + self._complaints())
            if not more:
                why = "ended the interpreter" if ready else f"runs longer than {self._seconds} s"
                raise Failed(f"the block {why}\n{text}{self._complaints()}")

    def _complaints(self) -> str:
        lines = (self._folder / ".stderr").read_text().splitlines(keepends=True)
        return "".join(line for line in lines if not _BUSY.match(line))

    def _shell(self, block: Block, text: str) -> str:
        command = ["bash", "-e", "-o", "pipefail", "-c", text]
        if block.goes_on:
            return self._until_it_speaks(["bash", "-c", f"exec {text}"])
        if block.stays:
            return self._stay(["bash", "-c", f"exec {text}"])
        done = subprocess.run(
            command, cwd=self._folder, env=self._env, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=self._seconds, check=False,
        )  # fmt: skip
        if done.returncode or (done.stderr and self._strict):
            raise Failed(f"exit code {done.returncode}\n{done.stdout}{done.stderr}")
        if block.printed and done.stdout != block.printed:
            raise Failed(f"the page shows\n{block.printed}and it prints\n{done.stdout}")
        return done.stdout

    def _until_it_speaks(self, command: list[str]) -> str:
        with subprocess.Popen(
            command, cwd=self._folder, env=self._env, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            if not select.select([process.stdout], [], [], BLOCK_SECONDS)[0]:
                process.kill()
                raise Failed("it says nothing")
            first = process.stdout.readline()
            process.send_signal(signal.SIGINT)
            try:
                rest, _ = process.communicate(timeout=BLOCK_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                raise Failed("Ctrl-C does not end it") from None
        if process.returncode:
            raise Failed(f"exit code {process.returncode}\n{first}{rest}")
        return first + rest

    def _stay(self, command: list[str]) -> str:
        """Start a server, and return what it says when it is ready."""
        with (self._folder / ".server").open("w") as log:
            process = subprocess.Popen(
                command, cwd=self._folder, env=self._env, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        self._staying.append(process)
        assert process.stdout is not None
        said = ""
        if select.select([process.stdout], [], [], BLOCK_SECONDS)[0]:
            said = process.stdout.readline()
        found = re.search(r"namesrv=(\S+)", said)
        if found is None:
            raise Failed(f"no server: {said}{(self._folder / '.server').read_text()}")
        self._namesrv = self._env["INORDER_NAMESRV"] = found[1]
        return said

    def save_test(self, block: Block) -> None:
        """Keep a test for the end of the page, in a file of its own."""
        (self._folder / f"test_line_{block.line}.py").write_text(block.text)

    def run_tests(self) -> str:
        """Run the tests that were kept, as their reader does. Raises Failed."""
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "inorder.testing.plugin",
             "-p", "no:cacheprovider", "--rootdir", str(self._folder), str(self._folder)],
            cwd=self._folder, env=self._env, capture_output=True, text=True,
            timeout=BLOCK_SECONDS, check=False,
        )  # fmt: skip
        if done.returncode:
            raise Failed(done.stdout + done.stderr)
        return done.stdout


@contextmanager
def session(*, with_spark: bool = False) -> Iterator[Session]:
    """Give a fresh broker, folder and interpreter."""
    folder = tempfile.TemporaryDirectory(prefix="inorder-page-")
    with folder as name, inorder.testing.broker() as own:
        one = Session(own.namesrv, Path(name), with_spark=with_spark)
        try:
            yield one
        except BaseException:
            one.kill()
            raise
        one.close()


def run_page(page: str) -> list[str]:
    """Run the blocks of a page; return what each printed. Raises Failed, which names the block."""
    printed, wanted = [], [block for block in blocks(page) if not block.not_run]
    with session(with_spark=page in SPARK) as one:
        for block in wanted:
            try:
                if block.kind == TEST:
                    one.save_test(block)
                else:
                    printed.append(one.run(block))
            except (Failed, subprocess.TimeoutExpired) as error:
                raise Failed(f"{block.where}: {error}") from None
        if any(block.kind == TEST for block in wanted):
            printed.append(one.run_tests())
    return printed


def main() -> int:
    """Run pages; say how long each took, and what failed."""
    hear_ctrl_c()
    failed = 0
    for page in sys.argv[1:] or pages():
        began = time.monotonic()
        try:
            count = len(run_page(page))
            print(f"{time.monotonic() - began:6.1f} s  {count:3d} blocks  {page}", flush=True)
        except Failed as error:
            failed += 1
            print(f"FAILED  {page}\n{error}\n", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
