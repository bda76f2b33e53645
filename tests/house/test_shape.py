"""Sizes, words and tests: the parts of the style that a machine can see."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter
from pathlib import Path

from tests.house.sources import ROOT, SOURCE, imported, modules

MODULE_LINES_MAX = 1000
FRAGMENT_LINES = 80
FUNCTION_LINES_MAX = 80
HOT_FUNCTION_LINES_MAX = 120

SHAPE = ("rules", "records", "checks", "service", "storage", "handlers")
"""The files of a feature: what is decided, bytes, RocketMQ's checks, the shell, files, requests."""
FEATURES = (
    "audit", "nameserver", "client/send", "client/consume", "spark/source", "spark/sink",
    "spark/ordered",
    *(f"broker/{one}" for one in (
        "admin", "assignments", "damage", "delays", "filters", "groups", "leases", "locks",
        "metrics", "offsets", "parking", "pops", "producers", "pulls", "resizing", "retries",
        "sends", "timers", "topics", "transactions",
    )),
)  # fmt: skip
NOUNS = {
    "nameserver/server.py": "the wiring of the process",
    "broker/delays/forwarding.py": "a delayed message of a key that moved to another broker",
    "broker/timers/wheel.py": "RocketMQ's files of timers, which a start takes over",
    "broker/groups/relay.py": "questions that operators ask consumers through the broker",
    "broker/metrics/port.py": "the admin port, and who looks at the loop",
    "broker/parking/moves.py": "parked keys over a resize",
    "broker/pops/acks.py": "acknowledgements of popped messages, and changes of their time",
    "broker/pops/polls.py": "who waits for messages, and until when; pure",
    "broker/pops/reading.py": "messages of a queue for a pop, also those that are not in memory",
    "broker/pops/revival.py": "messages that nobody acknowledged in time",
    "broker/pops/revivelog.py": "RocketMQ's check points, which a start takes over",
    "broker/resizing/release.py": "groups that wait for a version, and groups that are rewound",
    "broker/sends/packing.py": "the bytes of a stored record",
    "client/send/producer.py": "the public Producer",
    "client/send/batches.py": "the parts of a batch, and what a failed part stops",
    "client/send/failures.py": "failures that no caller asked for",
    "client/send/router.py": "which queue a send goes to",
    "client/send/sender.py": "the sends of one broker",
    "client/send/topics.py": "the route and key map of a topic, as its sends use them",
    "client/send/requests.py": "messages that wait for a reply",
    "client/send/queues.py": "the pending sends of one queue",
    "client/send/transactions.py": "a message that waits for its outcome, and a broker's questions",
    "client/send/messages.py": "a Message becomes the bytes of a request",
    "client/consume/consumer.py": "the public Consumer",
    "client/consume/pullconsumer.py": "the public PullConsumer",
    "client/consume/registrations.py": "the user's handlers, by topic",
    "client/consume/hooks.py": "the user's functions around a handler",
    "client/consume/queue.py": "one assigned queue",
    "client/consume/assignment.py": "membership, and queues that come and go",
    "client/consume/leases.py": "taking, renewing and losing leases and locks",
    "client/consume/pulls.py": "the pull loop",
    "client/consume/messages.py": "received messages",
    "client/consume/commits.py": "saving offsets",
    "client/consume/release.py": "handing a queue back",
    "client/consume/workers.py": "calling handlers",
    "client/consume/ordered.py": "handlers one at a time, of a queue or of a key",
    "client/consume/replies.py": "the replies of handlers",
    "client/consume/concurrent.py": "handlers without order",
    "client/consume/parking.py": "parking and redriving keys",
    "spark/source/options.py": "what a reader may set, and the columns that it gets",
    "spark/source/columns.py": "records become columns",
    "spark/sink/options.py": "what a user may set, and the columns that the sink takes",
    "spark/sink/packing.py": "rows become the body of a batch",
    "spark/sink/sender.py": "the sends of a task; loaded where rows are written",
    "spark/ordered/maps.py": "the key maps of a running query",
    "spark/ordered/parking.py": "parked keys of a query",
    "spark/ordered/outputs.py": "messages and results as Arrow rows; needs pyarrow",
    "spark/ordered/deadletters.py": "dead letters of a query; needs no pyarrow",
    "spark/ordered/timers.py": "timers of keys; loaded where they are asked for",
}
SMALL = {
    "checker/check.py": "the entry, beside the judges",
    "cli/main.py": "what every command imports first; start-up time",
    "cli/producer.py": "a command of its own",
    "demo/driver.py": "a program of its own, started by another",
    "testing/clock.py": "a noun of its own, for users",
}
"""Small files that one neighbour needs, each with the reason why it stands apart."""
DOORS = (
    "__init__.py", "aio.py", "spark/__init__.py", "spark/jobs/__init__.py", "testing/__init__.py",
    "checker/__init__.py", "client/admin/__init__.py", "settings/__init__.py",
)  # fmt: skip


def functions(tree: ast.AST) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Return every function of a tree."""
    return [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count the lines of a function without its docstring."""
    first = function.body[0]
    skip = 0
    if ast.get_docstring(function) is not None:
        skip = (first.end_lineno or first.lineno) - first.lineno + 1
    return (function.end_lineno or function.lineno) - function.lineno + 1 - skip


def is_hot(path: str, function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Tell whether a function carries the mark of a measured hot path."""
    lines = (SOURCE / path).read_text().splitlines()[function.lineno - 1 : function.end_lineno]
    return any("# hot:" in line for line in lines)


def size_of(path: str) -> int:
    """Count the lines of a module."""
    return len((SOURCE / path).read_text().splitlines())


def test_a_large_module_says_why_it_is_one_subject() -> None:
    """Split when there is a second noun, never because of a number; -s prints the largest."""
    sizes = {path: size_of(path) for path in modules()}
    for path, lines in sorted(sizes.items(), key=lambda item: -item[1])[:10]:
        print(f"{lines:5d} {path}")
    print(f"{sum(sizes.values()):5d} lines in {len(sizes)} modules")
    large = [
        path
        for path, lines in sizes.items()
        if lines > MODULE_LINES_MAX
        and "one subject" not in (ast.get_docstring(tree_of(path)) or "")
    ]
    assert large == []


def tree_of(path: str) -> ast.Module:
    """Return the syntax tree of a module."""
    return modules()[path]


def name_of(path: str) -> str:
    """Return the dotted name of a module."""
    return ".".join(("inorder", *Path(path).with_suffix("").parts)).removesuffix(".__init__")


def test_no_fragments() -> None:
    """A small file that one neighbour needs is a part of that neighbour.

    Files of the closed list may be small, and so may files that are loaded only when needed.
    """
    fragments = []
    for path in modules():
        if Path(path).stem in (*SHAPE, "__init__") or path in SMALL:
            continue
        if size_of(path) >= FRAGMENT_LINES:
            continue
        users = [
            other
            for other, tree in modules().items()
            if other != path and Path(other).parent == Path(path).parent
            if name_of(path) in {name for name, _ in imported(tree)}
        ]
        if len(users) == 1:
            fragments.append(f"{path} is needed by {users[0]} alone")
    assert fragments == []


def test_features_are_built_from_the_closed_list() -> None:
    """The question names the file: other names stand in NOUNS with their reason."""
    strange = [
        path
        for path in modules()
        if str(Path(path).parent) in FEATURES
        if Path(path).stem not in (*SHAPE, "__init__") and path not in NOUNS
    ]
    assert strange == []
    assert [path for path in (*NOUNS, *SMALL) if path not in modules()] == []


def test_no_methods_in_exile() -> None:
    """A function on a neighbour's object, which the neighbour imports back, is a method of it."""
    exiled = []
    paths = {name_of(path): path for path in modules()}
    for path, tree in modules().items():
        package = Path(path).parent
        classes = {
            alias.name: node.module
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module in paths
            for alias in node.names
        }
        for node in tree.body:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or not node.args.args:
                continue
            first = node.args.args[0].annotation
            if not isinstance(first, ast.Name) or first.id not in classes:
                continue
            owner = paths[classes[first.id]]
            defines = {one.name for one in tree_of(owner).body if isinstance(one, ast.ClassDef)}
            if Path(owner).parent != package or first.id not in defines or owner == path:
                continue
            if f"{name_of(path)}.{node.name}" in {name for name, _ in imported(tree_of(owner))}:
                exiled.append(f"{path}:{node.lineno} {node.name} is a method of {first.id}")
    assert exiled == []


def test_no_re_exports() -> None:
    """Only the doors of the package name what other modules define."""
    found = []
    for path, tree in modules().items():
        if path in DOORS:
            continue
        named = [
            node
            for node in tree.body
            if isinstance(node, ast.Assign)
            and any(isinstance(one, ast.Name) and one.id == "__all__" for one in node.targets)
        ]
        defined = {
            one.name
            for one in tree.body
            if isinstance(one, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        }
        for node in named:
            names = {one.value for one in ast.walk(node.value) if isinstance(one, ast.Constant)}
            found += [f"{path} exports {name}" for name in sorted(map(str, names - defined))]
    assert found == []


def test_collaborators_come_in_by_the_constructor() -> None:
    """The wiring of the broker and of a consumer sets no attribute of another object."""
    found = [
        f"{path}:{node.lineno} {ast.unparse(target)}"
        for path in ("broker/broker.py", "client/consume/service.py")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Attribute)
    ]
    assert found == []


def test_functions_fit_a_screen() -> None:
    """Long functions hide their steps; a loop marked `# hot:` may be longer, for calls cost."""
    long = {
        f"{path}:{function.lineno} {function.name}": code_lines(function)
        for path, tree in modules().items()
        for function in functions(tree)
        if code_lines(function)
        > (HOT_FUNCTION_LINES_MAX if is_hot(path, function) else FUNCTION_LINES_MAX)
    }
    assert long == {}


def test_every_module_says_why_it_exists() -> None:
    """The docstring at the head is where a reader starts."""
    silent = [path for path, tree in modules().items() if tree.body and not ast.get_docstring(tree)]
    assert silent == []


def test_public_classes_and_functions_are_documented() -> None:
    """What other rooms may use says what it does."""
    missing = [
        f"{path}:{node.lineno} {node.name}"
        for path, tree in modules().items()
        for node in tree.body
        # A handler is named after the request that it serves, and documented there.
        if not re.search(r"/handlers(/|\.py)", path)
        and isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and not node.name.startswith("_")
        and ast.get_docstring(node) is None
    ]
    assert missing == []


def committed_files() -> list[Path]:
    """Return the text files that are, or are about to be, in the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split("\0")  # fmt: skip
    suffixes = {".py", ".pyi", ".pyx", ".md", ".toml", ".txt", ".sh", ""}
    paths = [ROOT / name for name in listed if name]
    return [path for path in paths if path.suffix in suffixes and path.is_file()]


def test_no_leftovers_in_committed_files() -> None:
    """No notes to oneself, no paths of somebody's machine."""
    unwanted = re.compile(r"\b(TODO|FIXME|XXX)\b|/(work|home/\w+|root)/\w+")
    found = []
    for path in committed_files():
        if path in (Path(__file__), ROOT / "LICENSE"):
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue  # golden bytes
        found += [
            f"{path.relative_to(ROOT)}:{number} {line.strip()[:80]}"
            for number, line in enumerate(text.splitlines(), 1)
            if unwanted.search(line)
        ]
    assert found == []


def test_every_test_states_a_behaviour() -> None:
    """Each test has a docstring of its own; each file has another name."""
    missing = []
    names: Counter[str] = Counter()
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        names[path.name] += 1
        missing += [
            f"{path.relative_to(ROOT)}:{function.lineno} {function.name}"
            for function in functions(ast.parse(path.read_text()))
            if function.name.startswith("test_") and not ast.get_docstring(function)
        ]
    assert missing == []
    assert [name for name, count in names.items() if count > 1] == []


def test_fast_tests_do_not_sleep() -> None:
    """Unit and property tests wait for nothing: time is an argument."""
    sleepers = [
        str(path.relative_to(ROOT))
        for room in ("unit", "property")
        for path in sorted((ROOT / "tests" / room).rglob("*.py"))
        if re.search(r"\btime\.sleep\(", path.read_text())
    ]
    assert sleepers == []


def test_unit_tests_mirror_the_source() -> None:
    """A unit test lies in the folder of the package that it tests."""
    unit = ROOT / "tests" / "unit"
    strange = [
        str(path.relative_to(unit))
        for path in sorted(unit.rglob("*"))
        if path.is_dir() and path.name != "__pycache__" and path != unit / "kit"
        if not (SOURCE / path.relative_to(unit)).is_dir()
    ]
    assert strange == []
