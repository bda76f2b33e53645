"""`inorder pipeline …`: jobs on Spark over the topics of a cluster.

    summary = run_job(target, job, master=master, what="messages archived")

`run_job` provides the session, the progress bar, and errors in one line. `job` gets the session,
the servers (name servers, TLS and credentials, as arguments of a job) and a watch for its steps.
Spark is imported only after a check that it is installed. `inorder pipeline orders` runs order life
cycles as a full example.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from inorder.cli.failures import EXIT_FAILED
from inorder.cli.oncluster import Cluster, GroupArgument, OutputOption, TopicArgument, on_cluster
from inorder.cli.output import Output, progress, put_page, say, table
from inorder.cli.target import FILE_FIELDS
from inorder.errors import ConfigError

if TYPE_CHECKING:
    from inorder.spark.jobs.progress import Step, Watch

T = TypeVar("T")
Job = Callable[[Any, dict[str, Any], "Watch"], T]

MasterOption = Annotated[
    str | None,
    typer.Option(
        "--master",
        metavar="URL",
        help="Where Spark runs: local[2], spark://host:7077, k8s://…, yarn.  "
        "[env: SPARK_MASTER; default: local[*]]",
    ),
]
ConfOption = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark; may be repeated."),
]
EveryOption = Annotated[
    float | None, typer.Option("--every", min=0.1, metavar="SECONDS", help="Go on for ever.")
]
BatchOption = Annotated[int, typer.Option("--batch", min=1, help="Messages of a micro-batch.")]


def run_job(
    target: Cluster,
    job: Job[T],
    *,
    master: str | None,
    conf: list[str] | None = None,
    what: str = "messages",
) -> T:
    """Start Spark, run a job with a progress bar, stop Spark; return what the job returned."""
    from inorder.cli.output import parse_pairs
    from inorder.spark.jobs.progress import as_ours

    settings = parse_pairs(conf, "--conf")
    servers = servers_of(target)
    with spark_session(master, settings) as spark, watched(what) as watch:
        try:
            return job(spark, servers, watch)
        except Exception as error:  # Spark would print it in a hundred lines
            raise as_ours(error) from error


def servers_of(target: Cluster) -> dict[str, Any]:
    """Return the cluster as arguments of a job: `namesrv`, `tls` and `credentials_file`.

    Raises ConfigError for a bad file, and for keys that the processes of Spark cannot find.
    """
    from inorder.spark.cluster import Tls

    found = target.target()
    servers: dict[str, Any] = {"namesrv": found.name_servers}
    files = {
        name: str(Path(str(found.values[name].value)).absolute())
        for name in FILE_FIELDS
        if found.values[name].value
    }
    key = found.values["access_key"]
    if found.credentials() is not None and key.value and not key.origin.startswith("environment"):
        raise ConfigError(
            f"access_key ({key.origin}): Spark shows what it is given; write the keys into a file "
            "and name it as credentials_file"
        )
    if "credentials_file" in files:
        servers["credentials_file"] = files.pop("credentials_file")
    if found.context() is not None:
        pem = {name.removeprefix("tls_"): path for name, path in files.items()}
        servers["tls"] = Tls(**pem, insecure=bool(found.values["tls_insecure"].value))
    return servers


@contextlib.contextmanager
def spark_session(master: str | None, conf: dict[str, str]) -> Iterator[Any]:
    """Yield a Spark session, and stop it. Raises ConfigError if Spark is not installed."""
    from inorder.spark.sessions import check_packages, session

    check_packages()
    spark = session(master, conf=conf)
    try:
        yield spark
    finally:
        with contextlib.suppress(KeyboardInterrupt):
            spark.stop()


@contextlib.contextmanager
def watched(what: str) -> Iterator[Watch]:
    """Yield a watch that draws a bar on a terminal, and nothing elsewhere."""
    with progress(what, 0) as bar:
        drawn = [0, 0]

        def watch(step: Step) -> None:
            bar(step.done - drawn[0], step.total)
            drawn[0] = step.done

        yield watch


@on_cluster
def orders(
    target: Cluster,
    topic: TopicArgument,
    path: Annotated[str, typer.Argument(metavar="PATH", help="Folder that executors see.")],
    *,
    results: Annotated[
        str | None, typer.Option("--results", metavar="TOPIC", help="Send the rows there as well.")
    ] = None,
    group: Annotated[
        str, typer.Option("--group", help="Whose progress, and whose dead letters.")
    ] = "orders-pipeline",
    attempts: Annotated[
        int, typer.Option("--attempts", min=0, help="Further tries of a payment that fails.")
    ] = 3,
    batch: BatchOption = 20_000,
    every: EveryOption = None,
    master: MasterOption = None,
    conf: ConfOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Follow orders by account: late and failing payments, balances; goes on where it was."""

    def job(spark: Any, servers: dict[str, Any], watch: Watch) -> Any:
        from inorder.spark.jobs.lifecycles import orders

        return orders(
            spark, **servers, topic=topic, path=path, results=results, group=group,
            attempts=attempts, batch=batch, every_s=every, watch=watch,
        )  # fmt: skip

    done = run_job(target, job, master=master, conf=conf, what="steps of orders")
    _say(
        output, done,
        f"{done.processed:,} messages in {done.batches} batches; {done.path} holds {done.rows:,} "
        f"rows of {done.accounts:,} accounts, balance {done.balance / 100:,.2f}, "
        f"{done.late_payments:,} late payments; {done.waiting} accounts wait",
    )  # fmt: skip


app = typer.Typer(
    no_args_is_help=True,
    help="Jobs on Spark: archive, replay, audit, triage. Needs pip install 'inorder[spark]'.",
    rich_markup_mode=None,
)

app.command("orders")(orders)

PathArgument = Annotated[str, typer.Argument(metavar="PATH", help="Folder, or URL of one.")]
PlotOption = Annotated[
    str | None, typer.Option("--plot", metavar="FILE.png", help="Draw a picture.")
]
AtLeastOnceOption = Annotated[
    bool,
    typer.Option("--at-least-once", help="For Apache RocketMQ: what is repeated is stored again."),
]


@app.command()
@on_cluster
def archive(
    target: Cluster,
    topic: TopicArgument,
    path: PathArgument,
    *,
    group: Annotated[
        str | None, typer.Option("--group", help="Show the progress as this group's offsets.")
    ] = None,
    tag: Annotated[str, typer.Option("--tag", help="Only these: paid || shipped.")] = "*",
    every: EveryOption = None,
    batch: BatchOption = 2_000_000,
    data_loss: Annotated[
        bool, typer.Option("--allow-data-loss", help="Go on over messages that are gone.")
    ] = False,
    merge: Annotated[
        bool, typer.Option("--merge/--no-merge", help="Join small files at the end.")
    ] = True,
    master: MasterOption = None,
    conf: ConfOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Write a topic to Parquet files by day and queue, each message once; goes on where it was."""

    def job(spark: Any, servers: dict[str, Any], watch: Watch) -> Any:
        from inorder.spark.jobs.archives import archive

        return archive(
            spark, **servers, topic=topic, path=path, group=group, tag=tag, batch=batch,
            every_s=every, fail_on_data_loss=not data_loss, merge=merge, watch=watch,
        )  # fmt: skip

    done = run_job(target, job, master=master, conf=conf, what="messages archived")
    size_mib = done.size_bytes / 2**20
    _say(
        output, done,
        f"{done.archived:,} messages archived in {done.batches} batches; {done.path} holds "
        f"{done.files} files, {size_mib:,.1f} MiB, {done.merged} merged away, {done.holes} holes",
    )  # fmt: skip


@app.command()
@on_cluster
def replay(
    target: Cluster,
    path: PathArgument,
    topic: TopicArgument,
    *,
    source: Annotated[
        str | None, typer.Option("--source", help="Archived topic, if there are several.")
    ] = None,
    replay_id: Annotated[
        str | None,
        typer.Option("--id", help="Name of the replay: the same goes on.  [default: replay-TOPIC]"),
    ] = None,
    rate: Annotated[
        float | None, typer.Option("--rate", metavar="MESSAGES/S", help="Not faster than this.")
    ] = None,
    at_least_once: AtLeastOnceOption = False,
    master: MasterOption = None,
    conf: ConfOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Send an archive to a topic, in order, each message once; goes on where it was."""

    def job(spark: Any, servers: dict[str, Any], watch: Watch) -> Any:
        from inorder.spark.jobs.replays import replay

        return replay(
            spark, path=path, **servers, topic=topic, source=source, replay_id=replay_id,
            delivery=_delivery(at_least_once), messages_per_s=rate, watch=watch,
        )  # fmt: skip

    done = run_job(target, job, master=master, conf=conf, what="messages replayed")
    text = f"{done.replayed:,} of {done.total:,} messages replayed to {done.topic}, {done.delivery}"
    if not done.replayed:
        text += f"; replay {done.replay_id} was done before, another --id sends all again"
    _say(output, done, text)


@app.command()
@on_cluster
def audit(
    target: Cluster,
    topic: TopicArgument,
    *,
    results: Annotated[
        str | None, typer.Option("--results", metavar="TOPIC", help="What was written: a topic.")
    ] = None,
    parquet: Annotated[
        str | None,
        typer.Option("--parquet", metavar="PATH", help="What was written: a folder of Parquet."),
    ] = None,
    order_by: Annotated[
        str | None, typer.Option("--order-by", help="Column that has the order of the Parquet.")
    ] = None,
    archive: Annotated[
        str | None, typer.Option("--archive", metavar="PATH", help="Stored: an archive instead.")
    ] = None,
    group: Annotated[
        str | None, typer.Option("--group", help="Leave out what this group has not done yet.")
    ] = None,
    several: Annotated[
        bool, typer.Option("--several", help="A message may have several results.")
    ] = False,
    filtered: Annotated[
        bool, typer.Option("--filtered", help="A message may have no result.")
    ] = False,
    worst: Annotated[int, typer.Option("--worst", min=0, help="Keys to show.")] = 20,
    plot: PlotOption = None,
    master: MasterOption = None,
    conf: ConfOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Compare what is stored with what was handled, key by key: lost, doubled, inverted, unknown.

    Exit code 1 if anything is wrong, or if there was nothing to judge.
    """

    def job(spark: Any, servers: dict[str, Any], watch: Watch) -> Any:
        from inorder.spark.jobs.audits import audit

        return audit(
            spark, topic=topic, **servers, archive=archive, results=results, parquet=parquet,
            order_by=order_by, group=group, several=several, filtered=filtered, worst=worst,
            plot=plot, watch=watch,
        )  # fmt: skip

    done = run_job(target, job, master=master, conf=conf, what="messages audited")
    _say(output, done, str(done))
    if output is Output.TABLE and done.worst:
        headings = ("key", "stored", "handled", "lost", "doubled", "inverted", "unknown")
        put_page()
        put_page(table(headings, [[asdict(one)[name] for name in headings] for one in done.worst]))
    if not done.ok:
        raise typer.Exit(EXIT_FAILED)


@app.command("dead-letters")
@on_cluster
def dead_letters(
    target: Cluster,
    group: GroupArgument,
    *,
    cause: Annotated[str | None, typer.Option("--cause", help="Only those of this.")] = None,
    topic: Annotated[
        str | None, typer.Option("--topic", help="Only those that came from this one.")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", help="Only those of this one.")] = None,
    redrive: Annotated[
        bool, typer.Option("--redrive", help="Send them to their topics again, in order.")
    ] = False,
    at_least_once: AtLeastOnceOption = False,
    master: MasterOption = None,
    conf: ConfOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Group the dead letters of a group by cause; send them again, in order, each once."""

    def job(spark: Any, servers: dict[str, Any], watch: Watch) -> Any:
        from inorder.spark.jobs.deadletters import dead_letters

        return dead_letters(
            spark, **servers, group=group, cause=cause, topic=topic, key=key,
            redrive=redrive, delivery=_delivery(at_least_once), watch=watch,
        )  # fmt: skip

    done = run_job(target, job, master=master, conf=conf, what="dead letters")
    if output is Output.TABLE and done.causes:
        headings = ("cause", "topic", "tag", "letters", "keys", "first_at", "last_at", "sample")
        put_page(table(headings, [[asdict(one)[name] for name in headings] for one in done.causes]))
        put_page()
    sent = "" if done.redriven is None else f", {done.redriven:,} sent again ({done.delivery})"
    _say(output, done, f"{done.letters:,} dead letters of group {group}{sent}")


@app.command()
@on_cluster
def lag(
    target: Cluster,
    group: GroupArgument,
    *,
    topic: Annotated[str | None, typer.Option("--topic", help="Only on this one.")] = None,
    every: Annotated[
        float,
        typer.Option("--every", min=0.01, metavar="SECONDS", help="Time between two samples."),
    ] = 1.0,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="Samples.")] = 60,
    until_zero: Annotated[
        bool, typer.Option("--until-zero", help="End when nothing is left to do.")
    ] = False,
    path: Annotated[
        str | None, typer.Option("--path", metavar="FOLDER", help="Keep the samples as Parquet.")
    ] = None,
    plot: PlotOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Sample how far a group is behind, over time; `inorder lag` shows it once."""
    if path is not None:
        from inorder.spark.sessions import check_packages

        check_packages()
    from inorder.spark.jobs.lag import lag_over_time

    with watched("samples") as watch:
        done = lag_over_time(
            **servers_of(target), group=group, topic=topic, every_s=every, count=count, path=path,
            plot=plot, until_zero=until_zero, watch=watch,
        )  # fmt: skip
    _say(
        output, done,
        f"lag of group {group}: {done.lag_first:,} to {done.lag_last:,} in {done.seconds:g} s, "
        f"{done.lag_max:,} at most; {done.done_per_s:,.0f} messages/s done, "
        f"{done.stored_per_s:,.0f} stored",
    )  # fmt: skip


def _say(output: Output, done: Any, text: str) -> None:
    say(output, text, **asdict(done))


def _delivery(at_least_once: bool) -> str:
    return "at-least-once" if at_least_once else "exactly-once"
