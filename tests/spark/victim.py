"""The driver that is killed: one ordered pipeline over one checkpoint, told what to do by options.

    python -m tests.spark.victim FOLDER '{"namesrv": …, "sink": "both", "die": "after sink"}'

It counts the messages of each key and chains their numbers, so that a state that was lost, doubled
or taken from another batch shows in every row behind it. With `parks` a message that fails parks
its key, and succeeds once it is mended; else it is a dead letter. `die` names where it dies once:
the worker in the middle of a batch, before or after the batch is decided; the driver between two
sinks, or behind both, before Spark notes that the batch is done.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import zlib
from pathlib import Path
from typing import Any

TOPIC, RESULTS = "steps", "effects"


def chained(before: int, number: int) -> int:
    """Return the check of a chain with one link more."""
    return zlib.crc32(b"%d" % number, before)


def handler_of(folder: str, die: str, code: int, parks: bool) -> Any:
    """Return the handler; it carries all that it needs to a worker."""

    def die_once(where: str) -> None:
        if die == where:
            mark = Path(folder, "armed")
            try:
                mark.unlink()
            except FileNotFoundError:
                return
            os.kill(os.getpid(), signal.SIGKILL)

    def hook() -> None:
        """Let this worker die beside the decision of a batch."""
        from inorder.spark.ordered.storage import QueueFolder

        real = getattr(QueueFolder, "undisturbed", None) or QueueFolder.decide
        QueueFolder.undisturbed = real  # type: ignore[attr-defined]

        def decide(self: Any, version: Any, rows: bytes) -> Any:
            die_once("before decision")
            decided = real(self, version, rows)
            die_once("after decision")
            return decided

        QueueFolder.decide = decide  # type: ignore[method-assign]

    def handler(message: Any, state: Any) -> Any:
        if die.endswith("decision"):
            hook()
        number = int(message.body)
        if number % 7 == 3:
            die_once("in a batch")
        if number % 97 == 5 and message.attempt == 1 and not parks:
            raise_retry()
        if number % 211 == 17 and not (parks and number < mended()):
            raise ValueError("declined")
        count, check = state or (0, 0)
        count, check = count + 1, zlib.crc32(b"%d" % number, check)
        row = {"key": message.key, "body": f"{message.key} {number} {count} {check}"}
        if code > 1:
            row["tag"] = f"code-{code}"
        return (count, check), [row]

    def mended() -> int:
        """Return the number below which nothing fails any more."""
        try:
            return int(Path(folder, "mended").read_text() or 0)
        except FileNotFoundError:
            return 0

    def raise_retry() -> None:
        from inorder import Retry

        raise Retry(after=0.01)

    return handler


def run(folder: str, options: dict[str, Any]) -> None:
    """Run until what is there is done, or until killed."""
    import inorder
    from inorder.spark import process_in_order, session

    die, code, namesrv = options.get("die", ""), options.get("code", 1), options["namesrv"]
    if die:
        Path(folder, "armed").touch()
    spark = session("local[2]", conf={"spark.driver.memory": "768m"})
    print("ready", flush=True)
    stream = (
        spark.readStream.format("inorder")
        .options(namesrv=namesrv, topic=TOPIC, startingOffsets="earliest", group="effects",
                 maxOffsetsPerTrigger=str(options.get("batch", 400)))
        .load()
    )  # fmt: skip
    schema = "key string, body string" + (", tag string" if code > 1 else "")
    parks = options.get("parks", False)
    policy = inorder.Park(attempts=0) if parks else inorder.DeadLetter(attempts=1)
    rows = process_in_order(
        stream, handler_of(folder, die, code, parks), schema=schema, state=f"{folder}/state",
        namesrv=namesrv, group="effects", on_failure=policy, pause=0.01, patience=2,
        timers=options.get("timers", False), buckets=4,
    )  # fmt: skip

    def both(frame: Any, batch: int) -> None:
        frame.write.mode("overwrite").parquet(f"{folder}/rows/batch={batch}")
        end_here("between sinks")
        frame.write.format("inorder").mode("append").options(namesrv=namesrv, topic=RESULTS).save()
        end_here("after sink")

    def end_here(where: str) -> None:
        if die == where and Path(folder, "armed").exists():
            Path(folder, "armed").unlink()
            os.killpg(os.getpgid(0), signal.SIGKILL)

    writer = rows.writeStream.option("checkpointLocation", f"{folder}/checkpoint")
    if options.get("sink", "both") == "both":
        writer = writer.foreachBatch(both)
    else:
        writer = writer.format("inorder").options(namesrv=namesrv, topic=RESULTS)
    if options.get("last"):
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime="50 milliseconds")
    query = writer.start()
    query.awaitTermination()
    spark.stop()
    print("done", flush=True)


if __name__ == "__main__":
    run(sys.argv[1], json.loads(sys.argv[2]))
