"""An event loop without a clock, a socket or a thread: a whole cluster runs from one seed.

Time is virtual: when nothing is ready the loop jumps to the next timer. Connections live in memory
(`simnet`). `run_in_executor` calls the function on the loop, at a later instant of virtual time,
and delivers its result at a still later one; functions of an executor with one worker keep order.

The seed decides everything that asyncio leaves open: delays and cuts of the network, instants of
executor calls, and the order of timers and arrivals that fall on the same instant. Callbacks given
to `call_soon` run in the order given, because asyncio promises that (and protocols rely on it).
Shuffle.NONE keeps also the rest in order of registration; Shuffle.ALL breaks even the promise: it
finds code that relies on the order of wake-ups of unrelated tasks, and is for such hunts only.

Code inside `node.run(…)` belongs to a node, with all tasks, timers and connections that it makes (a
context variable carries the node). `loop.kill(node)` is kill -9: nothing of the node runs any
more, no `finally`, no `connection_lost`. `loop.freeze(node)` is SIGSTOP: it all waits for `thaw`.

The same seed gives the same run, also under another PYTHONHASHSEED; `trace_digest` shows it. If no
timer is left and no callback is ready the run can never end: SimDeadlock names the waiting tasks.
How a whole cluster is simulated: decision 38.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import contextvars
import functools
import hashlib
import heapq
import inspect
import itertools
import random
import socket
import weakref
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor
from enum import Enum
from typing import Any, TypeVar, TypeVarTuple

from tests.kit.simnet import ANY_HOST, ProtocolFactory, SimNetwork, SimServer, SimTransport

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

STEPS_MAX = 5_000_000
WHOLE_CHUNK_RATIO = 0.8
CHUNK_BYTES_MAX = 64 * 1024


class Shuffle(Enum):
    """What the seed may reorder; see the head of this file."""

    NONE = "none"
    EVENTS = "events"
    ALL = "all"


class SimDeadlock(RuntimeError):
    """Nothing can ever happen again, but the main task is not done."""


class SimStepsExceeded(RuntimeError):
    """The run takes more steps than it should; it probably spins."""


class Node:
    """A machine or process of the simulation: whatever runs in its context."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.alive = True
        self.frozen = False
        self.held: list[asyncio.Handle] = []
        self.remains: list[asyncio.Task[Any]] = []

    @contextlib.contextmanager
    def here(self) -> Iterator[None]:
        """Make tasks that are started in this block part of the node."""
        token = _NODE.set(self)
        try:
            yield
        finally:
            _NODE.reset(token)

    async def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine as part of the node and return its result.

        If the node is killed meanwhile, this never returns: wait with a timeout.
        """
        with self.here():
            task = asyncio.get_running_loop().create_task(coroutine)
        return await task

    def __repr__(self) -> str:
        state = "dead" if not self.alive else "frozen" if self.frozen else "alive"
        return f"Node({self.host!r}, {state})"


_LOCAL = Node("127.0.0.1")
_NODE: contextvars.ContextVar[Node] = contextvars.ContextVar("inorder_sim_node", default=_LOCAL)


class SimLoop(asyncio.BaseEventLoop):
    """The loop. Use `run`, or give `SimLoop(seed)` to asyncio.Runner as its factory."""

    _ready: collections.deque[asyncio.Handle]
    _stopping: bool

    def __init__(
        self, seed: int = 0, *, shuffle: Shuffle = Shuffle.EVENTS, steps_max: int = STEPS_MAX
    ) -> None:
        super().__init__()
        self.seed = seed
        self.random = random.Random(f"loop/{seed}")
        self.network = SimNetwork(self)
        self.executor_delay_ms: tuple[float, float] = (0.01, 2.0)
        self.steps = 0
        self.trace: list[tuple[object, ...]] | None = None
        """Set to a list to keep every event of the network and the executor."""
        self._shuffle = shuffle
        self._steps_max = steps_max
        self._now = 0.0
        self._digest = hashlib.sha256()
        self._queues: dict[int, float] = {}
        self._burying = False
        self._timer_numbers = itertools.count()
        self._timers: list[tuple[float, int, _Timer]] = []
        self._tasks: weakref.WeakKeyDictionary[asyncio.Task[Any], Node] = (
            weakref.WeakKeyDictionary()
        )
        self.errors: list[BaseException] = []
        """What callbacks raised; `run` raises it again."""
        self.set_debug(False)
        self.set_task_factory(self._make_task)
        self.set_exception_handler(_collect)

    # Time and order.

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        # The one method of asyncio that is replaced: it would wait in select().
        timers = self._timers
        while timers and timers[0][2].cancelled():
            self._pop_timer()
        if not self._ready and not self._stopping:
            if not timers:
                raise SimDeadlock(self._describe_waiting())
            self._now = max(self._now, timers[0][0])
        if timers and timers[0][0] <= self._now:
            self._ready.extend(self._take_due())
        if self._shuffle is Shuffle.ALL:
            everything = list(self._ready)
            self.random.shuffle(everything)
            self._ready.clear()
            self._ready.extend(everything)
        ready = self._ready
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled and self._may_run(handle):  # type: ignore[attr-defined]
                self.steps += 1
                handle._run()
        if self.steps > self._steps_max:
            raise SimStepsExceeded(
                f"seed {self.seed}: more than {self._steps_max} steps by t={self._now:.3f} s"
            )

    def _take_due(self) -> list[asyncio.Handle]:
        """Return the timers that are due: earlier first, those of one instant shuffled."""
        due: list[asyncio.Handle] = []
        timers = self._timers
        while timers and timers[0][0] <= self._now:
            instant: list[asyncio.Handle] = []
            when = timers[0][0]
            while timers and timers[0][0] == when:
                instant.append(self._pop_timer())
            if self._shuffle is not Shuffle.NONE:
                self.random.shuffle(instant)
            due += instant
        return due

    def _pop_timer(self) -> asyncio.TimerHandle:
        timer = heapq.heappop(self._timers)[2]
        timer._scheduled = False
        return timer

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        self._check_closed()  # type: ignore[attr-defined]
        timer = _Timer(when, callback, args, self, context)
        # Among equals they come in the order of registration.
        heapq.heappush(self._timers, (when, next(self._timer_numbers), timer))
        timer._scheduled = True
        return timer

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Leave a cancelled timer where it is; it is dropped when its time comes."""

    def _write_to_self(self) -> None:
        """There is no thread to wake."""

    def _process_events(self, event_list: object) -> None:
        """There is no selector."""

    def _describe_waiting(self) -> str:
        lines = [f"seed {self.seed}: deadlock at t={self._now:.3f} s; waiting tasks:"]
        for task in self.open_tasks():
            stack = task.get_stack(limit=1)
            where = f"{stack[0].f_code.co_filename}:{stack[0].f_lineno}" if stack else "?"
            lines.append(f"  {task.get_name()} in {task.get_coro()!r} at {where}")
        return "\n".join(lines)

    # Nodes.

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **options)
        context: contextvars.Context | None = options.get("context")
        self._tasks[task] = _NODE.get() if context is None else self.node_of(context)
        return task

    def open_tasks(self) -> list[asyncio.Task[Any]]:
        """Return the tasks that are not done, oldest first."""
        return [task for task in self._tasks if not task.done()]

    def node_of_task(self, task: asyncio.Task[Any]) -> Node:
        """Return the node that a task belongs to."""
        return self._tasks[task]

    def node(self, host: str) -> Node:
        """Make a node; its host may be that of one that is dead."""
        return Node(host)

    def node_of(self, context: contextvars.Context) -> Node:
        """Return the node that a context belongs to."""
        return context.get(_NODE, _LOCAL)

    @property
    def current_host(self) -> str:
        """Return the host of the current node."""
        return _NODE.get().host

    def kill(self, node: Node, *, silent: bool = False) -> None:
        """End a node as kill -9 does; `silent`, as a power cut does: peers see no reset."""
        assert node is not _LOCAL, "the default node holds the test itself"
        self.note("kill", node.host, silent)
        node.alive = False
        node.held.clear()
        # Kept, or the garbage collector would close them and so run their `finally` after all.
        node.remains = [task for task in self.open_tasks() if self._tasks[task] is node]
        self.network.kill(node, silent=silent)

    def freeze(self, node: Node) -> None:
        """Stop a node; the world goes on."""
        assert node is not _LOCAL, "the default node holds the test itself"
        self.note("freeze", node.host)
        node.frozen = True

    def thaw(self, node: Node) -> None:
        """Let a frozen node go on; everything that was due meanwhile comes at once."""
        self.note("thaw", node.host)
        node.frozen = False
        self._ready.extend(node.held)
        node.held.clear()

    def _may_run(self, handle: asyncio.Handle) -> bool:
        node: Node = handle._context.get(_NODE, _LOCAL)  # type: ignore[attr-defined]
        if self._burying or (node.alive and not node.frozen):
            return True
        if node.alive:
            node.held.append(handle)
        return False

    def bury(self) -> None:
        """Let the tasks of dead and frozen nodes run, so that they can be cancelled."""
        self._burying = True

    # Network.

    async def create_server(  # type: ignore[override]
        self,
        protocol_factory: ProtocolFactory,
        host: str | None = None,
        port: int | None = None,
        **options: Any,
    ) -> SimServer:
        _refuse(options, "ssl", "sock")
        await asyncio.sleep(0)
        # An address of all interfaces, or of this host under its usual name, is the node's own.
        asked = host or ""
        bound = self.current_host if asked in ANY_HOST | {"localhost"} else asked
        return self.network.listen(protocol_factory, bound, port or 0)

    async def create_connection(  # type: ignore[override]
        self,
        protocol_factory: ProtocolFactory,
        host: str | None = None,
        port: int | None = None,
        **options: Any,
    ) -> tuple[SimTransport, asyncio.BaseProtocol]:
        _refuse(options, "ssl", "sock")
        assert host is not None
        assert port is not None
        return await self.network.connect(protocol_factory, host, port)

    async def getaddrinfo(  # type: ignore[override]
        self, host: str, port: int, **_: Any
    ) -> list[tuple[Any, ...]]:
        await asyncio.sleep(0)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))]

    def draw_cut(self, size_bytes: int) -> int:
        """Return where the network cuts a chunk: mostly at its end, else anywhere."""
        size_bytes = min(size_bytes, CHUNK_BYTES_MAX)
        if self.random.random() < WHOLE_CHUNK_RATIO:
            return size_bytes
        return self.random.randint(1, size_bytes)

    # Executor.

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, function: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self.create_future()
        begin = self._now + self.random.uniform(*self.executor_delay_ms) / 1000
        if getattr(executor, "_max_workers", None) == 1:
            begin = max(begin, self._queues.get(id(executor), 0.0))
            self._queues[id(executor)] = begin + 1e-9
        self.call_at(begin, self._execute, future, functools.partial(function, *args))
        return future

    def _execute(self, future: asyncio.Future[T], function: Callable[[], T]) -> None:
        self.note("execute")
        finish: Callable[[], None]
        try:
            finish = functools.partial(_settle, future.set_result, future, function())
        except BaseException as error:  # any exception is the caller's
            finish = functools.partial(_settle, future.set_exception, future, error)
        self.call_later(self.random.uniform(*self.executor_delay_ms) / 1000, finish)

    # Trace.

    def note(self, *event: object) -> None:
        """Add an event to the trace."""
        stamped = (round(self._now * 1e9), *event)
        self._digest.update(repr(stamped).encode())
        if self.trace is not None:
            self.trace.append(stamped)

    def trace_digest(self) -> str:
        """Return a hash of everything that the network and the executor did."""
        return self._digest.hexdigest()


class _Timer(asyncio.TimerHandle):
    """A timer of this loop, which asyncio's own list of timers does not hold."""

    __slots__ = ()

    _scheduled: bool


def _collect(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Keep the exception of a callback; leave other reports to asyncio's log."""
    error = context.get("exception")
    if isinstance(loop, SimLoop) and "handle" in context and error is not None:
        loop.errors.append(error)
    else:
        loop.default_exception_handler(context)


def _settle(setter: Callable[[Any], None], future: asyncio.Future[Any], value: object) -> None:
    if not future.done():
        setter(value)


def _refuse(options: dict[str, Any], *names: str) -> None:
    for name in names:
        if options.get(name) is not None:
            raise NotImplementedError(f"the simulated network does not take {name}=")


def run(
    main: Callable[[SimLoop], Coroutine[Any, Any, T]],
    seed: int = 0,
    *,
    shuffle: Shuffle = Shuffle.EVENTS,
    steps_max: int = STEPS_MAX,
) -> T:
    """Run `main(loop)` on a new loop to its end; then cancel all that is left, and close."""
    loop = SimLoop(seed, shuffle=shuffle, steps_max=steps_max)
    try:
        asyncio.set_event_loop(loop)
        result = loop.run_until_complete(main(loop))
        if loop.errors:
            raise BaseExceptionGroup(f"seed {seed}: callbacks failed", loop.errors)
        return result
    finally:
        try:
            _cancel_rest(loop)
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            asyncio.set_event_loop(None)
            loop.close()


def _sleep_for_ever(loop: SimLoop) -> set[asyncio.Task[Any]]:
    """Return the tasks of dead nodes that nothing calls any more, and those that wait for them.

    Their wake-up was due when their node died, or their first step.
    """
    waiting = {
        task: getattr(task, "_fut_waiter", None)
        for task in loop.open_tasks() if not loop.node_of_task(task).alive
    }  # fmt: skip
    found = {task for task, awaited in waiting.items() if awaited is None or awaited.done()}
    more = True
    while more:
        more = False
        for task, awaited in waiting.items():
            parts = {awaited, *getattr(awaited, "_children", ())}  # of a gather
            if task not in found and parts & found:
                found.add(task)
                more = True
    return found


def _close_given(coroutine: object) -> bool:
    """Close what a coroutine that never began was given; else Python complains of it.

    Return whether it is such a one.
    """
    if not inspect.iscoroutine(coroutine):
        return False
    if inspect.getcoroutinestate(coroutine) != inspect.CORO_CREATED:
        return False
    for value in inspect.getcoroutinelocals(coroutine).values():
        if _close_given(value):
            value.close()
    return True


def _cancel_rest(loop: SimLoop) -> None:
    loop.bury()
    asleep = _sleep_for_ever(loop)
    rest = [task for task in loop.open_tasks() if task not in asleep]
    for task in asleep:
        coroutine = task.get_coro()
        if _close_given(coroutine):
            coroutine.close()  # type: ignore[union-attr]  # else Python complains here, too
    for task in rest:
        _close_given(task.get_coro())
    for task in rest:
        task.cancel()
    if rest:
        loop.run_until_complete(asyncio.gather(*rest, return_exceptions=True))
