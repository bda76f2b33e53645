"""The compiled module under the compiler's sanitizers: tests and fuzz targets that call it.

    python -m tests.fuzz.sanitized [--kind address undefined] [--seconds 60] [--only-fuzz ...]

For each kind the module is compiled anew, into a copy of the package in `build/sanitized`, and all
that calls it runs there. The first access beyond an object, or the first undefined step, ends the
run. `--seconds` is the time of all fuzz targets of a kind together, beside that of the tests.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from tests.fuzz import targets

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "sanitized"
# Without -fwrapv, with which the module is built else: an overflow of a signed number is reported.
OPTIONS = {
    "address": ("-fsanitize=address", "-fno-omit-frame-pointer", "-g"),
    "undefined": ("-fsanitize=undefined", "-fno-sanitize-recover=undefined", "-fno-wrapv", "-g"),
}
LIBRARIES = {"address": "libasan.so", "undefined": "libubsan.so"}
TESTS = (
    "tests/property/test_batch_twins.py",
    "tests/property/test_hot_path_twins.py",
    "tests/property/test_index_twins.py",
    "tests/property/test_message_twins.py",
    "tests/property/test_packed_items_twins.py",
    "tests/property/test_sending_twins.py",
    "tests/property/test_signature_twins.py",
    "tests/unit/broker/pulls",
    "tests/unit/broker/sends",
    "tests/unit/client/consume",
    "tests/unit/client/send",
    "tests/unit/spark/sink/test_compiled_columns.py",
    "tests/unit/spark/source/test_columns.py",
    "tests/unit/store/test_keyindex.py",
    "tests/unit/sync",
    "tests/unit/test_accelerated.py",
    "tests/unit/test_fuzz_targets.py",
)
TARGETS = tuple(name for name in targets.TARGETS if name.startswith("compiled_"))


def build(kind: str) -> Path:
    """Return the folder that holds the package with its checked module."""
    folder = BUILD / kind
    shutil.rmtree(folder, ignore_errors=True)
    left_out = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOT / "src" / "inorder", folder / "src" / "inorder", ignore=left_out)
    shutil.copytree(ROOT / "tools", folder / "tools", ignore=left_out)
    subprocess.run(
        [sys.executable, str(folder / "tools" / "compile_native.py"), *OPTIONS[kind]], check=True
    )
    return folder / "src"


def environment(kind: str, source: Path) -> dict[str, str]:
    """Return the variables under which Python loads that module and its library."""
    compiler = shlex.split(os.environ.get("CC", "cc"))
    library = subprocess.run(
        [*compiler, f"-print-file-name={LIBRARIES[kind]}"], capture_output=True, text=True,
        check=True,
    ).stdout.strip()  # fmt: skip
    return {
        **{name: value for name, value in os.environ.items() if name != "INORDER_PURE"},
        "PYTHONPATH": f"{source}:{ROOT}",
        "LD_PRELOAD": library,
        "PYTHONMALLOC": "malloc",  # else objects lie side by side in Python's own pools
        "ASAN_OPTIONS": "detect_leaks=0",  # Python keeps much until its end
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }


def check(kind: str, seconds: float, only_fuzz: list[str] | None) -> int:
    """Run everything under one kind; return how many of the runs failed."""
    source = build(kind)
    variables = environment(kind, source)
    which = (
        "import sys; from inorder.accelerated import native; assert native is not None; "
        "assert native.__file__.startswith(sys.argv[1]), native.__file__"
    )
    tests = [
        "-m", "pytest", "-q", "-n", "0", "-o", "pythonpath=.", "-p", "no:cacheprovider", *TESTS
    ]  # fmt: skip
    runs = [["-c", which, str(source)]]
    runs += [tests] if only_fuzz is None else []
    fuzz = ["-m", "tests.fuzz.run", "--blind", f"--seconds={seconds}", "--target"]
    runs.append([*fuzz, *(only_fuzz or TARGETS)])
    failed = 0
    for words in runs:
        done = subprocess.run(
            [sys.executable, "-X", "faulthandler", *words], cwd=ROOT, env=variables, check=False
        )
        failed += done.returncode != 0
    print(f"{kind}: {len(runs)} runs, {failed} failed", flush=True)
    return failed


def main() -> int:
    """Read the arguments, run, and return the exit code."""
    words = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    words.add_argument("--kind", nargs="*", choices=OPTIONS, default=list(OPTIONS))
    words.add_argument("--seconds", type=float, default=60.0, help="for the fuzz targets of a kind")
    words.add_argument(
        "--only-fuzz", nargs="*", choices=TARGETS, help="without the tests; or these targets alone"
    )
    chosen = words.parse_args()
    failed = [check(kind, chosen.seconds, chosen.only_fuzz) for kind in chosen.kind]
    return 1 if any(failed) else 0


if __name__ == "__main__":
    sys.exit(main())
