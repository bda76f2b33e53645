"""Play all conversations and write docs/compatibility.md; print what is not explained."""

from __future__ import annotations

import logging
import sys

from tests.golden.replay.report import PAGE, all_results, page, unused_later, unused_rules


def main() -> int:
    """Return 0 if every difference is explained."""
    logging.getLogger("inorder").setLevel(logging.ERROR)
    results = all_results()
    unexplained = [
        difference
        for result in results
        for judged in result.judged
        for difference in judged.unexplained
    ]
    for difference in unexplained:
        print(difference)
    stale = [*unused_rules(results), *map(str, unused_later(results))]
    if stale:
        print("nothing is explained any more by:", *stale)
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}; {len(unexplained)} differences are not explained")
    return 1 if unexplained or stale else 0


if __name__ == "__main__":
    sys.exit(main())
