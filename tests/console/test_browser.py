"""Each task of an operator, done by clicking in a real Chromium; looks, names and contrast."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.console.conftest import PICTURES, Place, driver

pytestmark = [pytest.mark.browser, pytest.mark.slow]

PATIENT_S = 20.0
FIRST_PAINT_MS = 1000
CONSOLE_KIB_MAX = 80 * 1024
PAGES = {
    "overview": "/",
    "topics": "/topics",
    "topic": "/topics/orders",
    "resize": "/topics/orders/resize",
    "send": "/topics/orders/send",
    "groups": "/groups",
    "group": "/groups/billing",
    "owners": "/groups/billing/owners",
    "offsets": "/groups/reports/offsets?topic=payments&to=beginning",
    "dead-letters": "/groups/mailing/dead-letters",
    "dead-letter": "/message?topic=%25DLQ%25mailing&queue=broker-a/0&offset=0",
    "messages": "/messages?topic=orders",
    "message": "/message?topic=orders&queue=broker-a/0&offset=0",
    "keys": "/keys",
    "story": "/keys?topic=orders&key=order-42",
    "parked": "/parked",
    "brokers": "/brokers",
    "audit": "/audit",
    "settings": "/settings",
    "find": "/find?q=order",
    "not-found": "/topics/ordesr",
}
CHECKS = r"""
const found = [];
const name = (e) => (e.getAttribute('aria-label') || e.textContent || e.title || '').trim();
const shown = (e) => e.checkVisibility && e.checkVisibility();
for (const e of document.querySelectorAll('input:not([type=hidden]), select, textarea'))
  if (!e.labels.length && !e.getAttribute('aria-label')) found.push('no label: ' + e.outerHTML);
for (const e of document.querySelectorAll('a, button, summary'))
  if (shown(e) && !name(e)) found.push('no name: ' + e.outerHTML);
for (const e of document.querySelectorAll('svg[role=img]'))
  if (!e.getAttribute('aria-label')) found.push('no label: svg');
for (const e of document.querySelectorAll('table')) {
  if (!e.caption) found.push('a table without a caption');
  for (const h of e.querySelectorAll('th')) if (!h.scope) found.push('a th without scope');
}
if (document.querySelectorAll('h1').length !== 1) found.push('not one h1');
for (const one of ['header', 'nav', 'main'])
  if (!document.querySelector(one)) found.push('no landmark ' + one);
const ids = [...document.querySelectorAll('[id]')].map((e) => e.id);
for (const id of ids) if (ids.filter((one) => one === id).length > 1) found.push('id twice: ' + id);
const parse = (c) => { const m = c.match(/[\d.]+/g).map(Number);
  return [m[0], m[1], m[2], m[3] ?? 1]; };
const light = (c) => { const [r, g, b] = c.slice(0, 3).map((v) => { v /= 255;
  return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const ground = (e) => { for (; e; e = e.parentElement) {
  const c = parse(getComputedStyle(e).backgroundColor); if (c[3] === 1) return c; }
  return [255, 255, 255, 1]; };
const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walk.nextNode()) {
  const e = walk.currentNode.parentElement;
  if (!walk.currentNode.textContent.trim() || !shown(e)) continue;
  if (e.closest('.hidden, svg, .skip')) continue;
  const style = getComputedStyle(e);
  const [a, b] = [light(parse(style.color)), light(ground(e))].sort((x, y) => y - x);
  const ratio = (a + 0.05) / (b + 0.05);
  if (ratio < 4.5) found.push(`contrast ${ratio.toFixed(2)}: ${e.outerHTML.slice(0, 120)}`);
}
return found;
"""


class Hand:
    """A person at a browser."""

    def __init__(self, browser: Any, place: Place) -> None:
        self.browser = browser
        self.place = place

    def open(self, path: str) -> None:
        """Open a page."""
        self.browser.get(self.place.url + path)

    def sign_in(self, link: str) -> None:
        """Follow the printed link and press its button."""
        self.browser.get(link)
        self.press("Sign in", within="main")
        self.until(lambda: "Sign out" in self.text("header"))

    def one(self, selector: str) -> Any:
        """Return an element."""
        return self.browser.find_element("css selector", selector)

    def text(self, selector: str = "body") -> str:
        """Return the words of an element, read anew if it was replaced meanwhile."""
        script = "return (document.querySelector(arguments[0]) || {}).innerText || ''"
        return str(self.browser.execute_script(script, selector))

    def press(self, words: str, *, within: str = "body") -> None:
        """Press the button with these words."""
        for each in self.browser.find_elements("css selector", f"{within} button"):
            if each.text == words and each.is_displayed():
                each.click()
                return
        raise AssertionError(f"no button {words}: {self.text('main')[:400]}")

    def follow(self, words: str, *, within: str = "main") -> None:
        """Follow the link with these words; live sections may replace it while we reach for it."""
        script = """
          const found = [...document.querySelectorAll(arguments[0] + ' a')]
            .find((e) => e.innerText.trim() === arguments[1]);
          if (found) found.click();
          return Boolean(found);
        """
        self.until(lambda: self.browser.execute_script(script, within, words))

    def fill(self, label: str, value: str, *, within: str = "main") -> None:
        """Write into the field with this label."""
        for each in self.browser.find_elements("css selector", f"{within} label"):
            if each.text == label and each.is_displayed():
                field = self.browser.find_element("id", each.get_attribute("for"))
                if field.tag_name != "select":
                    field.clear()
                field.send_keys(value)
                return
        raise AssertionError(f"no field {label}")

    def until(self, condition: Callable[[], Any], seconds: float = PATIENT_S) -> Any:
        """Wait until something is to be seen."""
        end = time.monotonic() + seconds
        while True:
            found = condition()
            if found:
                return found
            if time.monotonic() > end:
                raise AssertionError(f"not seen in {seconds} s: {self.text('main')[:2000]}")
            time.sleep(0.1)

    def sees(self, words: str, selector: str = "main") -> None:
        """Wait until words are to be seen."""
        self.until(lambda: words in self.text(selector))

    def picture(self, name: str) -> None:
        """Keep a picture of the page."""
        PICTURES.mkdir(parents=True, exist_ok=True)
        self.browser.save_screenshot(str(PICTURES / f"{name}.png"))


@pytest.fixture(scope="module")
def hand(chromium: str, place: Place) -> Iterator[Hand]:
    """Return a person who is signed in."""
    browser = driver(chromium)
    try:
        found = Hand(browser, place)
        found.open("/")
        found.sees("read-only", "header")
        found.sign_in(place.enter)
        yield found
    finally:
        browser.quit()


@pytest.fixture
def stranger(chromium: str, place: Place) -> Iterator[Hand]:
    """Return a person who is not signed in."""
    browser = driver(chromium)
    try:
        yield Hand(browser, place)
    finally:
        browser.quit()


def test_a_stuck_group_is_found_and_repaired(hand: Hand) -> None:
    """The walk of the manual: overview, cause, story, redrive; the key flows again."""
    hand.open("/")
    hand.sees("are parked")
    hand.sees("group reports has")
    hand.picture("overview")
    hand.follow("reports", within="#groups")
    hand.sees("nobody consumes")
    hand.open("/groups/billing")
    hand.sees("2 keys are parked")
    hand.picture("group")
    hand.follow("2 keys are parked; they wait for a redrive, others flow")
    hand.sees("order-42")
    hand.picture("parked")
    hand.follow("order-42")
    hand.sees("parked", "#story")
    hand.open("/parked")
    hand.place.tell_shop("mend")
    for box in hand.browser.find_elements("css selector", "input[type=checkbox]"):
        box.click()
    hand.fill("Reason", "customer restored")
    hand.press("Dry run")
    hand.sees("would be redriven")
    hand.sees("2 of 2 keys")
    for box in hand.browser.find_elements("css selector", "input[type=checkbox]"):
        box.click()
    hand.fill("Reason", "customer restored")
    hand.press("Redrive")
    hand.sees("go to the consumers again")

    def gone() -> bool:
        hand.open("/parked")
        return "No key is parked" in hand.text("main")

    hand.until(gone)
    hand.open("/settings")
    hand.sees("customer restored", "#log")


def test_dead_letters_are_looked_at_and_sent_again(hand: Hand) -> None:
    """From the group to its causes, a letter and its body; one alone, then the others, once."""
    hand.open("/groups/mailing")
    hand.follow("Dead letters", within="main .tabs")
    hand.sees("ValueError: no such address <script>", "#causes")
    hand.picture("dead-letters")
    count = len(hand.browser.find_elements("css selector", "#letters input[type=checkbox]"))
    assert count > 1
    hand.browser.find_element("css selector", "#letters tbody td a").click()
    hand.sees("INORDER_DEAD_ERROR", "#properties")
    hand.picture("dead-letter")
    hand.fill("Reason", "address mended", within="#again")
    hand.press("Send again")
    hand.sees("1 dead letter sent again, to the topics of origin")
    for box in hand.browser.find_elements("css selector", "#letters input[type=checkbox]"):
        box.click()
    hand.press("Dry run")
    hand.sees("1 was sent again before; nothing has changed")
    assert "hacked" not in hand.browser.title


def test_the_story_of_a_key_is_told(hand: Hand) -> None:
    """From the search field to every step, each with its source; hostile texts stay texts."""
    hand.open("/")
    field = hand.one("#find")
    field.send_keys("order-42\n")
    hand.sees("Keys and messages")
    hand.follow("key", within="#scope")
    for kind in ("sent", "stored", "delivered", "failed", "retried", "parked", "joined",
                 "redrive ordered", "redriven", "live again", "committed"):  # fmt: skip
        hand.sees(kind, "#story")
    hand.sees("in order", "#verdict")
    hand.sees("<script>document.title='hacked'</script>", "#story")
    assert "hacked" not in hand.browser.title
    hand.picture("story")


def test_a_topic_is_resized_with_progress(hand: Hand) -> None:
    """Type its name, give a reason, watch the groups finish; the key's story has the move."""
    hand.open("/topics")
    hand.follow("orders")
    hand.follow("Resize", within="main .tabs")
    hand.fill("Queues in all", "8")
    hand.fill("Type orders to confirm", "orders")
    hand.fill("Reason", "more cores")
    hand.press("Resize")
    hand.sees("version 2 is open: 8 queues")
    hand.sees("every group reads the present version")
    hand.picture("resize")
    hand.open("/keys?topic=orders&key=order-42")
    hand.sees("resized 4 → 8 queues", "#story")


def test_a_message_is_found_and_looked_at(hand: Hand) -> None:
    """By topic, key, time, id and tag; the row opens to body, properties and traces."""
    hand.open("/messages")
    hand.fill("Topic", "orders")
    hand.press("Find", within="main")
    hand.sees("shown, the newest of")
    hand.fill("Key", "order-43")
    hand.press("Find", within="main")
    hand.sees("2 shown, by the broker's filter")
    hand.picture("messages")
    hand.browser.find_element("css selector", "#found tbody td a").click()
    hand.sees('"order": 43', "#body")
    hand.sees("Pub", "#traces")
    id_ = hand.one("#facts code").text
    hand.picture("message")
    hand.open("/messages?topic=orders")
    hand.fill("Message id", id_)
    hand.press("Find", within="main")
    hand.sees("1 shown, by id")
    hand.open("/messages?topic=orders&tag=paid&since=1h")
    hand.sees("with tag paid")


def test_a_reset_shows_its_effect_first(hand: Hand) -> None:
    """Preview, then the name of the group and a reason; the offsets are back."""
    hand.open("/groups/reports/offsets")
    hand.fill("To", "beginning")
    hand.press("Preview")
    hand.sees("Preview: nothing has changed")
    hand.sees("again")
    hand.picture("offsets")
    hand.fill("Type reports to confirm", "reports")
    hand.fill("Reason", "a new report")
    hand.press("Reset")
    hand.sees("goes on at beginning of payments")
    hand.sees("41", "#facts")


def test_owners_are_seen_and_taken_away(hand: Hand) -> None:
    """A bar for each queue, the epoch, and a queue that is taken from its owner."""
    hand.open("/groups/billing/owners")
    hand.until(lambda: hand.browser.find_elements("css selector", "svg.timeline rect.owner"))
    hand.picture("owners")
    hand.browser.find_element("css selector", "td details summary").click()
    reason = hand.browser.find_element("css selector", "td details input[name=reason]")
    reason.send_keys("frozen")
    hand.press("Take away")
    hand.sees("is taken away from")


def test_an_audit_runs_on_demand(hand: Hand) -> None:
    """Order was kept, says the checker; the report stays."""
    hand.open("/audit")
    hand.fill("Topic", "orders")
    hand.fill("Group", "billing")
    hand.press("Run the audit")
    hand.sees("in order", "#reports")
    hand.picture("audit")


def test_a_test_message_is_sent_and_a_setting_changed(hand: Hand) -> None:
    """The receipt leads to the message; a changed setting is in the operator log."""
    hand.open("/topics/orders/send")
    hand.fill("Key", "order-7")
    hand.fill("Body", "hello")
    hand.press("Send")
    hand.sees("is stored at broker-a/")
    hand.sees("hello", "#body")
    hand.open("/settings?word=autoCreateTopicEnable")
    hand.sees("true", "#broker")
    hand.fill("Setting", "autoCreateTopicEnable")
    hand.fill("New value", "false")
    hand.fill("Reason", "topics are made on purpose")
    hand.press("Change the setting")
    hand.sees("autoCreateTopicEnable of broker broker-a is false now")
    hand.sees("false", "#broker")
    hand.sees("topics are made on purpose", "#log")


def test_pages_live_without_being_read_again(hand: Hand) -> None:
    """Numbers change by themselves; what one types stays; the page says that it is live."""
    hand.open("/topics/orders")
    hand.sees("live", ".fresh")
    before = hand.text("#facts")
    hand.until(lambda: hand.text("#facts") != before)
    hand.open("/groups?word=")
    field = hand.one("#f-word")
    field.send_keys("bill")
    time.sleep(5)
    assert field.get_attribute("value") == "bill"


def test_keys_lead_through_the_console(hand: Hand) -> None:
    """g t, j, Enter, slash and question mark; the theme is chosen and kept."""
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    def keys(*words: str) -> None:
        ActionChains(hand.browser).send_keys(*words).perform()

    hand.open("/brokers")
    keys("g", "t")
    hand.until(lambda: hand.browser.current_url.endswith("/topics"))
    keys("j", Keys.ENTER)
    hand.until(lambda: hand.browser.current_url.endswith("/topics/orders"))
    keys("/")
    hand.until(lambda: hand.browser.switch_to.active_element.get_attribute("id") == "find")
    keys(Keys.ESCAPE)
    keys("?")
    hand.sees("search", "#help")
    hand.press("Close")
    for theme in ("light", "dark"):
        hand.one("#theme").click()
        assert hand.one("#theme").text == f"Theme: {theme}"
    hand.open("/")
    assert hand.browser.execute_script("return document.documentElement.dataset.theme") == "dark"
    hand.picture("overview-dark")
    hand.open("/keys?topic=orders&key=order-42")
    hand.sees("committed", "#story")
    hand.picture("story-dark")
    hand.one("#theme").click()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_names_labels_and_contrast(chromium: str, place: Place, scheme: str) -> None:
    """Every page, both themes: labels, names, one h1, landmarks, captions, contrast of 4.5."""
    browser = driver(chromium, dark=scheme == "dark")
    try:
        hand = Hand(browser, place)
        wrong = {}
        for name, path in {**PAGES, "sign-in": "/sign-in"}.items():
            hand.open(path)
            found = browser.execute_script(CHECKS)
            if found:
                wrong[name] = found
        assert wrong == {}
    finally:
        browser.quit()


@pytest.fixture(scope="session")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the text of axe-core, fetched for this run."""
    folder = tmp_path_factory.mktemp("axe")
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("axe-core comes by npm, which is not here; the checks of our own ran")
    try:
        subprocess.run(
            [npm, "pack", "axe-core@4", "--silent"], cwd=folder, check=True, timeout=60,
            capture_output=True,
        )  # fmt: skip
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"npm pack axe-core: {error}")
    (package,) = folder.glob("*.tgz")
    with tarfile.open(package) as files:
        member = files.extractfile("package/axe.min.js")
        assert member is not None
        return member.read().decode()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(chromium: str, place: Place, hand: Hand, axe: str, scheme: str) -> None:
    """No violation of WCAG 2.2 A and AA on any page, for a stranger and for an operator."""
    browser = driver(chromium, dark=scheme == "dark")
    run = (
        "const done = arguments[arguments.length - 1];"
        "axe.run({runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa',"
        " 'best-practice']}).then((r) => done(r.violations.map((v) =>"
        " v.id + ': ' + v.nodes.map((n) => n.html).slice(0, 2).join(' | '))));"
    )
    try:
        wrong = {}
        operator = hand if scheme == "light" else None
        for one in filter(None, (Hand(browser, place), operator)):
            for name, path in PAGES.items():
                one.open(path)
                one.browser.execute_script(axe)
                found = one.browser.execute_async_script(run)
                if found:
                    wrong[name] = found
        assert wrong == {}
    finally:
        browser.quit()


def test_no_page_asks_another_host_or_breaks_its_policy(hand: Hand) -> None:
    """No request leaves the console, no console error, no CSP report, on any page."""
    hand.browser.get_log("browser")
    hand.browser.get_log("performance")
    for name, path in PAGES.items():
        if name != "not-found":
            hand.open(path)
    errors = [one["message"] for one in hand.browser.get_log("browser") if one["level"] == "SEVERE"]
    assert errors == []
    hosts = set()
    for entry in hand.browser.get_log("performance"):
        event = json.loads(entry["message"])["message"]
        if event["method"] == "Network.requestWillBeSent":
            parts = urlsplit(event["params"]["request"]["url"])
            if parts.scheme in ("http", "https", "ws"):
                hosts.add(parts.netloc)
    assert hosts == {urlsplit(hand.place.url).netloc}


def test_a_stranger_sees_and_changes_nothing(stranger: Hand) -> None:
    """Without signing in there is no form that changes anything."""
    for name, path in PAGES.items():
        stranger.open(path)
        forms = stranger.browser.find_elements("css selector", "form[method=post]")
        assert forms == [], name
    stranger.open("/parked")
    stranger.sees("Parked keys")


def test_pages_are_quick_and_the_console_is_small(hand: Hand, place: Place) -> None:
    """The first paint comes within a second, and the process stays below 80 MB."""
    slow = {}
    for name, path in PAGES.items():
        hand.open(path)
        painted = hand.until(
            lambda: hand.browser.execute_script(
                "return (performance.getEntriesByName('first-paint')[0] || {}).startTime"
            )
        )
        if painted > FIRST_PAINT_MS:
            slow[name] = painted
    assert slow == {}
    status = Path(f"/proc/{place.pid}/status").read_text()
    resident = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert resident is not None
    print(f"console: {int(resident[1]) // 1024} MiB")
    assert int(resident[1]) < CONSOLE_KIB_MAX
