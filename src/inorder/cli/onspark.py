"""Commands that run a job on Spark: the session, the progress bar, errors in one line.

    summary = run_job(target, job, master=master, what="messages archived")

`job` gets the session, the servers (name servers and TLS, as arguments of a job) and a watch to
tell its steps to. Nothing of Spark is imported before it is known to be there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from inorder.cli.profiles import FILE_FIELDS
from inorder.cli.progress import progress

if TYPE_CHECKING:
    from inorder.cli.oncluster import Cluster
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


def run_job(
    target: Cluster,
    job: Job[T],
    *,
    master: str | None,
    conf: list[str] | None = None,
    what: str = "messages",
) -> T:
    """Start Spark, run a job with a progress bar, stop Spark; return what the job returned."""
    from inorder.cli.values import parse_pairs
    from inorder.spark.jobs.progress import as_ours

    settings = parse_pairs(conf, "--conf")
    servers = servers_of(target)
    with spark_session(master, settings) as spark, watched(what) as watch:
        try:
            return job(spark, servers, watch)
        except Exception as error:  # the layers of Spark say it in a hundred lines
            raise as_ours(error) from error


def servers_of(target: Cluster) -> dict[str, Any]:
    """Return where the cluster is that is meant, as arguments of a job: `namesrv` and `tls`.

    Raises ConfigError for a bad file.
    """
    from inorder.spark.cluster import Tls

    found = target.target()
    if found.context() is None:
        return {"namesrv": found.name_servers}
    files = {
        name.removeprefix("tls_"): str(Path(str(found.values[name].value)).absolute())
        for name in FILE_FIELDS
        if found.values[name].value
    }
    tls = Tls(**files, insecure=bool(found.values["tls_insecure"].value))
    return {"namesrv": found.name_servers, "tls": tls}


@contextlib.contextmanager
def spark_session(master: str | None, conf: dict[str, str]) -> Iterator[Any]:
    """Give a session of ours, and stop it. Raises ConfigError if Spark is not there."""
    from inorder.spark.session import check_packages, session

    check_packages()
    spark = session(master, conf=conf)
    try:
        yield spark
    finally:
        with contextlib.suppress(KeyboardInterrupt):
            spark.stop()


@contextlib.contextmanager
def watched(what: str) -> Iterator[Watch]:
    """Give a watch that draws a bar on a terminal, and nothing elsewhere."""
    with progress(what, 0) as bar:
        drawn = [0, 0]

        def watch(step: Step) -> None:
            bar(step.done - drawn[0], step.total)
            drawn[0] = step.done

        yield watch
