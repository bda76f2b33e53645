"""Write the tables of docs/howto/monitoring.md: `python -m tools.make_metrics`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from inorder.broker.metrics.rules import CATALOGUE
from inorder.exposition import Family
from inorder.metrics import CATALOGUE as CLIENT_CATALOGUE
from inorder.nameserver.server import CATALOGUE as NAMESRV_CATALOGUE
from inorder.net.admin import BUILD, PROCESS

PAGE: Final = Path(__file__).parents[1] / "docs" / "howto" / "monitoring.md"
TABLES: Final = {
    "broker": [*CATALOGUE.values()],
    "process": [*PROCESS, BUILD],
    "nameserver": [*NAMESRV_CATALOGUE.values()],
    "client": [*CLIENT_CATALOGUE.values()],
}


def table(families: Iterable[Family]) -> str:
    """Return the rows of some families."""
    rows = [
        f"| `{one.name}` | {one.kind} | {', '.join(one.labels)} | {one.doc} |" for one in families
    ]
    return "\n".join(["| metric | type | labels | what it tells |", "|---|---|---|---|", *rows])


def filled(page: str) -> str:
    """Return the page with the tables of the code."""
    for name, families in TABLES.items():
        begin, end = f"<!-- metrics of {name}: generated -->", f"<!-- end of {name} -->"
        before, _, rest = page.partition(begin)
        _, found, after = rest.partition(end)
        assert found, f"the page lost its place for {name}"
        page = f"{before}{begin}\n{table(families)}\n{end}{after}"
    return page


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
    print(f"wrote {PAGE}")
