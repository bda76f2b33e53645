"""`inorder version` and `inorder demo`."""

from __future__ import annotations

import platform
from importlib.util import find_spec
from typing import Annotated

import typer

import inorder
from inorder.accelerated import native, reason
from inorder.cli.failures import says_errors
from inorder.cli.output import Output, as_json, put_line, put_page, table

# Packages that not every install has, and what each is for.
_PACKAGES = {
    "uvloop": "event loop",
    "isal": "checksums",
    "numpy": "columns of Spark",
    "lz4": "lz4 bodies",
    "zstandard": "zstd bodies",
}


def print_version(wanted: bool) -> None:
    """Print the version alone and exit, if `--version` was given."""
    if wanted:
        put_line(f"inorder {inorder.__version__}")
        raise typer.Exit


@says_errors
def version(
    output: Annotated[Output, typer.Option("-o", "--output", help="Form.")] = Output.TABLE,
) -> None:
    """Print the version. Also the Python that runs it, and which packages are there."""
    extras = {name: find_spec(name) is not None for name in _PACKAGES}
    if output is Output.JSON:
        put_page(
            as_json(
                {
                    "version": inorder.__version__,
                    "python": platform.python_version(),
                    "accelerated": native is not None,
                    "extras": extras,
                }
            )
        )
        return
    rows = [("inorder", inorder.__version__, ""), ("python", platform.python_version(), "")]
    rows.append(("accelerated", reason, "the hot path, compiled"))
    rows += [(name, "yes" if there else "no", _PACKAGES[name]) for name, there in extras.items()]
    put_page(table(("name", "version or present", "used for"), rows))


@says_errors
def demo(
    *,
    orders: Annotated[int, typer.Option("--orders", min=1, help="How many orders.")] = 2000,
    producers: Annotated[int, typer.Option("--producers", min=1, help="Who send them.")] = 4,
    clean: Annotated[
        bool, typer.Option("--clean", help="Stop the second consumer instead of killing it.")
    ] = False,
    spark: Annotated[
        bool,
        typer.Option("--spark", help="Go on with Spark. Needs pip install 'inorder[spark,plot]'."),
    ] = False,
    picture: Annotated[
        str, typer.Option("--picture", metavar="FILE.png", help="Where Spark's part is drawn.")
    ] = "inorder-demo.png",
    output: Annotated[Output, typer.Option("-o", "--output", help="Form.")] = Output.TABLE,
) -> None:
    """Show the story so far: orders sent, handled by two processes, one killed, and checked."""
    from inorder.demo.orders import run_demo

    run_demo(orders, producers, output, clean=clean)
    if spark:
        from inorder.demo.spark import run_spark_demo

        run_spark_demo(4 * orders, picture, output)
