"""The list of 10,000 topics in a real Chromium: what is bounded, and when it is painted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.console.conftest import PICTURES, driver, ended, started

pytestmark = [pytest.mark.browser, pytest.mark.slow]

TOPICS = 10_000
QUEUES = 4
ROWS = 50
NODES_MAX = 1_500
BYTES_MAX = 64_000
FIGURES = """
const done = arguments[arguments.length - 1];
const paint = (name) => (performance.getEntriesByName(name)[0] || {}).startTime;
const tell = () => {
  if (!paint('first-contentful-paint')) return setTimeout(tell, 20);
  const page = performance.getEntriesByType('navigation')[0];
  done({first_paint_ms: paint('first-paint'), contentful_ms: paint('first-contentful-paint'),
    answered_ms: page.responseEnd, bytes: page.decodedBodySize,
    nodes: document.querySelectorAll('*').length,
    rows: document.querySelectorAll('#topics tbody tr').length});
};
tell();
"""


def prepare(data: Path) -> None:
    """Write the topics as a broker keeps them."""
    table = {
        name: {"topicName": name, "readQueueNums": QUEUES, "writeQueueNums": QUEUES, "perm": 6,
               "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False}
        for name in (f"topic-{number:05d}" for number in range(TOPICS))
    }  # fmt: skip
    (data / "config").mkdir(parents=True)
    content = {"topicConfigTable": table, "dataVersion": {"timestamp": 1, "counter": 1}}
    (data / "config" / "topics.json").write_text(json.dumps(content))


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a cluster with many topics and its console; return the console's address."""
    data = tmp_path_factory.mktemp("many") / "data"
    prepare(data)
    up = started(
        ["-m", "inorder.cli.main", "up", "--namesrv-port", "0", "--broker-port", "0",
         "--console", "--console-port", "0", "--data", str(data), "-o", "json",
         "--log-level", "error"],
    )  # fmt: skip
    try:
        assert up.stdout is not None
        yield json.loads(up.stdout.readline())["console"]
    finally:
        ended(up)


def test_the_list_of_ten_thousand_topics_is_a_small_page(chromium: str, many: str) -> None:
    """Fifty rows, few nodes and bytes, the next page a click away; the paint is printed."""
    browser = driver(chromium)
    try:
        for visit in ("first", "second", "third"):
            browser.get(f"{many}/topics")
            found = browser.execute_async_script(FIGURES)
            print(visit, found)
            assert found["rows"] == ROWS
            assert found["nodes"] < NODES_MAX
            assert 0 < found["bytes"] < BYTES_MAX
            assert found["contentful_ms"] > 0
        main = browser.find_element("css selector", "main")
        assert f"{ROWS} of {TOPICS:,} topics" in main.text
        assert f"page 1 of {TOPICS // ROWS}" in main.text
        PICTURES.mkdir(parents=True, exist_ok=True)
        browser.save_screenshot(str(PICTURES / "many-topics.png"))
        browser.find_element("css selector", "a[rel=next]").click()
        first = browser.find_element("css selector", "#topics tbody tr").text
        assert first.startswith(f"topic-{ROWS:05d}")
        browser.get(f"{many}/topics?word=topic-04242")
        assert "1 of 1 topics" in browser.find_element("css selector", "main").text
    finally:
        browser.quit()
