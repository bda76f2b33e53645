"""The console by HTTP, in front of the embedded servers: looking, signing in, changing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import inorder
import inorder.aio
from inorder.credentials import Credentials
from inorder.model import TopicConfig, TopicQueue
from tests.integration.accesskit import ROOT, SECRETS, SETTINGS, stored
from tests.integration.consolekit import Browser, Site, live_events, site, until

pytestmark = pytest.mark.slow

EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"


def play(tmp_path: Path, story: Callable[[Site], Awaitable[None]], **options: Any) -> None:
    """Run a story with a site."""

    async def main() -> None:
        async with site(tmp_path, **options) as found:
            await story(found)

    asyncio.run(main())


async def fill(found: Site, count: int = 12) -> None:
    """Create a topic with messages of four keys."""
    async with found.admin() as admin:
        await admin.topics.create("orders", queues=2)
    async with inorder.aio.Producer(found.pair.namesrv_address) as producer:
        for number in range(count):
            await producer.send("orders", b'{"n": %d}' % number, key=f"order-{number % 4}",
                                tag="paid")  # fmt: skip


async def consume(found: Site, *, trace: bool = False, fails: Callable[[Any], bool] | None = None,
                  group: str = "billing") -> inorder.aio.Consumer:  # fmt: skip
    """Start a consumer that parks keys whose messages fail."""
    consumer = inorder.aio.Consumer(
        found.pair.namesrv_address, group=group, consume_from="first", trace=trace
    )

    @consumer.on("orders", order="key", on_failure=inorder.Park(attempts=0))
    async def handle(message: inorder.ReceivedMessage) -> None:
        if fails is not None and fails(message):
            raise ValueError(f"no such customer {EVIL}")

    await consumer.start()
    return consumer


def test_every_page_of_an_empty_cluster(tmp_path: Path) -> None:
    """Each page is there at once, says that there is nothing, and carries the guards."""

    async def story(found: Site) -> None:
        browser = found.browser()
        for path in ("/", "/topics", "/groups", "/messages", "/keys", "/parked", "/brokers",
                     "/audit", "/settings", "/sign-in", "/find?q=x"):  # fmt: skip
            answer = await browser.get(path)
            assert answer.status == 200, (path, answer.text)
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert answer.headers["x-frame-options"] == "DENY"
            assert answer.headers["cache-control"] == "no-store"
        assert "There is no topic" in (await browser.get("/topics")).text
        state = (await browser.get("/")).text
        assert "Nothing needs you" in state or "the disk of broker" in state  # this machine's

    play(tmp_path, story)


def test_pages_of_a_cluster_at_work(tmp_path: Path) -> None:
    """Topics, queues, messages, a message, groups, members and owners show what is there."""

    async def story(found: Site) -> None:
        await fill(found)
        consumer = await consume(found)
        browser = found.browser()

        async def done() -> bool:
            page = await browser.get("/groups/billing")
            return "1 member is connected" in page.text and "To do 0" in page.text

        await until(done)
        topics = await browser.get("/topics")
        assert "orders 4" not in topics.text
        assert "orders 2 version 1 12" in topics.text
        assert "billing" in (await browser.get("/topics/orders")).text
        page = await browser.get("/messages?topic=orders")
        assert page.text.count("order-1") >= 3
        assert '{"n": 11}' in page.text
        by_key = await browser.get("/messages?topic=orders&key=order-2")
        assert "3 shown, by the broker's filter" in by_key.text
        place = by_key.body.split('href="/message?')[1].split('"')[0].replace("&amp;", "&")
        one = await browser.get(f"/message?{place}")
        assert "Body JSON" in one.text
        id_ = one.text.split(" Id ")[1].split()[0]
        assert "1 shown, by id" in (await browser.get(f"/messages?topic=orders&id={id_}")).text
        assert "12 shown" in (await browser.get("/messages?topic=orders&since=1h")).text
        owners = await browser.get("/groups/billing/owners")
        assert "connected" in owners.text
        assert 'class="owner' in owners.body
        await consumer.close()

    play(tmp_path, story)


def test_every_page_is_there_as_data_too(tmp_path: Path) -> None:
    """With .json behind its path: numbers as numbers, texts whole; errors are data as well."""

    async def story(found: Site) -> None:
        await given_up(found, 12)
        browser = found.browser()

        async def data(path: str, status: int = 200) -> Any:
            answer = await browser.get(path)
            assert (answer.status, answer.headers["content-type"]) == (status, "application/json")
            assert answer.headers["x-content-type-options"] == "nosniff"
            whole = json.loads(answer.body)
            return whole["data"] if status == 200 else whole

        for page in ("overview", "topics/orders/resize", "groups/billing/owners",
                     "groups/billing/offsets", "parked", "audit", "settings"):  # fmt: skip
            assert await data(f"/{page}.json")
        (row,) = (await data("/topics.json?word=orders"))["topics"]["rows"]
        assert (row["name"], row["queues"], row["messages"]) == ("orders", 2, 12)
        topic = await data("/topics/orders.json")
        assert sum(one["max_offset"] for one in topic["queues"]["rows"]) == 12
        group = await data("/groups/billing.json")
        assert group["why"][0]["level"] == "warn"
        assert (await data("/groups.json"))["groups"]["total"] == 1
        rows = (await data("/messages.json?topic=orders&key=order-2"))["found"]["messages"]
        assert [one["body"] for one in rows] == [{"text": f'{{"n": {n}}}'} for n in (2, 6, 10)]
        one = await data("/message.json?topic=%25DLQ%25billing&queue=broker-a/0&offset=1")
        assert one["message"]["properties"]["INORDER_DEAD_ERROR"].endswith(EVIL)
        assert one["body_bytes"] == 8
        letters = await data("/groups/billing/dead-letters.json")
        assert [each["letters"] for each in letters["causes"]] == [3]
        steps = (await data("/keys.json?topic=orders&key=order-1"))["steps"]
        assert steps[0]["kind"] == "sent"
        assert (await data("/brokers.json"))["brokers"][0]["name"] == "broker-a"
        assert (await data("/find.json?q=order"))["found"][0]["link"] == "/topics/orders"
        assert "ordesr" in (await data("/topics/ordesr.json", 404))["error"]
        assert (await data("/keys.json", 404))["error"].startswith("this page is a form")
        page = await browser.get("/groups/billing/owners?page=1")
        assert 'href="/groups/billing/owners.json?page=1"' in page.body
        assert 'href="/overview.json"' in (await browser.get("/")).body
        operator = await found.operator()
        shown = await operator.get("/settings")
        secrets_ = {shown.csrf(), *operator.cookies.values(), found.token}
        for path in ("/settings.json", "/parked.json", "/overview.json"):
            told = (await operator.get(path)).body
            assert not [each for each in secrets_ if each in told]

    play(tmp_path, story)


def test_data_is_for_who_may_see_the_page(tmp_path: Path) -> None:
    """Where strangers see nothing they get the reason, and who signs in gets the data."""

    async def story(found: Site) -> None:
        browser = found.browser()
        refused = await browser.get("/topics.json")
        assert (refused.status, json.loads(refused.body)) == (401, {"error": "sign in first"})
        assert (await (await found.operator()).get("/topics.json")).status == 200

    play(tmp_path, story, looks=False)


def test_names_that_are_not_there(tmp_path: Path) -> None:
    """An unknown object is 404 and names the nearest; an unknown page too."""

    async def story(found: Site) -> None:
        await fill(found)
        browser = found.browser()
        near = await browser.get("/topics/ordesr")
        assert near.status == 404
        assert "Did you mean orders" in near.text
        assert (await browser.get("/groups/nobody")).status == 404
        assert (await browser.get("/nothing/here")).status == 404
        assert (await browser.get("/topics/orders/nothing")).status == 404
        assert (await browser.get("/static/../app.py")).status in (400, 404)
        assert (await browser.get("/message?topic=orders&queue=x&offset=1")).status == 400

    play(tmp_path, story)


CHANGES: list[tuple[str, dict[str, str]]] = [
    ("/topics/orders/send", {"body": "x", "key": "k"}),
    ("/topics/orders/resize", {"do": "start", "queues": "4", "confirm": "orders", "reason": "r"}),
    ("/parked", {"do": "redrive", "key": b"billing\x1forders\x1forder-1".hex()}),
    ("/groups/billing/offsets", {"topic": "orders", "to": "beginning", "confirm": "billing",
                                 "reason": "r"}),
    ("/groups/billing/dead-letters", {"do": "send", "letter": b"%DLQ%billing|broker-a|0|0".hex()}),
    ("/groups/billing/take", {"queue": "orders/broker-a/0", "reason": "r"}),
    ("/settings", {"broker": "broker-a", "name": "autoCreateTopicEnable", "value": "false",
                   "reason": "r"}),
    ("/audit", {"topic": "orders"}),
    ("/links", {}),
]  # fmt: skip


async def state_of(found: Site) -> tuple[Any, ...]:
    """Return what a change could have changed."""
    broker = found.pair.broker
    async with found.admin() as admin:
        view = await admin.topics.describe("orders")
        settings = await admin.cluster.settings("broker-a")
    offsets = [broker.offsets.query("billing", "orders", one) for one in (0, 1)]
    return view.messages, len(view.queues), settings["autoCreateTopicEnable"], offsets


@pytest.mark.parametrize(
    "attack", ["signed out", "no token", "other's token", "origin", "no origin", "cross-site"]
)
def test_nobody_changes_anything_without_the_right(tmp_path: Path, attack: str) -> None:
    """Signed out, without the session's token, or from another site: refused, by its effect."""

    async def story(found: Site) -> None:
        await fill(found)
        before = await state_of(found)
        browser = found.browser() if attack == "signed out" else await found.operator()
        other = (await (await _second(found)).get("/audit")).csrf()
        own = (await browser.get("/audit")).csrf()
        token = {"no token": "", "other's token": other, "signed out": other}.get(attack, own)
        headers: dict[str, str] = {
            "origin": {"Origin": "http://evil.example"},
            "no origin": {"Origin": ""},
            "cross-site": {"Sec-Fetch-Site": "cross-site"},
        }.get(attack, {})
        for path, fields in CHANGES:
            answer = await browser.post(path, {**fields, "csrf": token}, **headers)
            assert answer.status in (401, 403), (path, answer.text)
        assert await state_of(found) == before
        assert [one.what for one in found.sessions.log if one.what != "signed in"] == []

    async def _second(found: Site) -> Browser:
        second = found.browser()
        await second.sign_in(found.sessions.new_token())
        return second

    play(tmp_path, story)


def test_the_same_changes_work_for_who_may(tmp_path: Path) -> None:
    """The forms that were refused above are not refused for lack of sense: they work signed in."""

    async def story(found: Site) -> None:
        await fill(found)
        browser = await found.operator()
        token = (await browser.get("/audit")).csrf()
        for path, fields in CHANGES:
            answer = await browser.post(path, {**fields, "csrf": token})
            assert answer.status == 303, path
        messages, queues, setting, _ = await state_of(found)
        assert (messages, queues, setting) == (13, 4, "false")
        assert len(found.sessions.log) == 1 + len(CHANGES)

    play(tmp_path, story)


def test_other_names_of_this_address_are_refused(tmp_path: Path) -> None:
    """DNS rebinding: a request under another site's name is answered 421, also for live pages."""

    async def story(found: Site) -> None:
        for path in ("/", "/live?at=%2F", "/static/console.js"):
            answer = await found.browser().get(path, Host="evil.example:8089")
            assert answer.status == 421

    play(tmp_path, story)


def test_the_printed_link_works_once(tmp_path: Path) -> None:
    """The page behind it uses nothing up; the button signs in; a second time is refused."""

    async def story(found: Site) -> None:
        first, second = found.browser(), found.browser()
        for _ in range(2):
            assert "Sign in" in (await first.get(f"/enter?token={found.token}")).text
        assert first.cookies == {}
        await first.sign_in(found.token)
        assert "operator" in (await first.get("/")).text
        again = await second.post("/enter", {"token": found.token})
        assert again.status == 403
        assert "was used" in again.text
        assert second.cookies == {}
        page = await first.submit("/settings", "Make a sign-in link for another person", "/links")
        link = page.text.split("Works once: ")[1].split()[0]
        await second.sign_in(link.partition("token=")[2])
        out = await first.post("/sign-out", {"csrf": (await first.get("/")).csrf()})
        assert out.status == 303
        assert "read-only" in (await first.get("/")).text
        assert "operator" in (await second.get("/")).text

    play(tmp_path, story)


def test_the_cookie_is_for_this_console_only(tmp_path: Path) -> None:
    """Scripts do not see it, other sites do not send it, and a way back stays here."""

    async def story(found: Site) -> None:
        answer = await found.browser().post(
            "/enter", {"token": found.token, "back": "//evil.example"}
        )
        assert answer.headers["location"] == "/"
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie

    play(tmp_path, story)


def test_guessing_ends(tmp_path: Path) -> None:
    """After ten wrong tokens even the right one waits."""

    async def story(found: Site) -> None:
        browser = found.browser()
        for _ in range(10):
            assert (await browser.post("/enter", {"token": "wrong"})).status == 403
        refused = await browser.post("/enter", {"token": found.token})
        assert "wait a minute" in refused.text

    play(tmp_path, story)


def test_a_console_that_others_reach_shows_nothing_to_strangers(tmp_path: Path) -> None:
    """Without `looks` every page leads to the sign-in, and live pages are refused."""

    async def story(found: Site) -> None:
        browser = found.browser()
        for path in ("/", "/topics/orders", "/messages?topic=orders"):
            answer = await browser.get(path)
            assert answer.status == 303
            assert answer.headers["location"].startswith("/sign-in?back=")
        assert (await browser.get("/live?at=%2F")).status == 401
        await browser.sign_in(found.token)
        assert (await browser.get("/")).status == 200

    play(tmp_path, story, looks=False)


def test_hostile_messages_and_errors_stay_text(tmp_path: Path) -> None:
    """Bodies, keys, tags, properties and errors of others never become markup, on any page."""

    async def story(found: Site) -> None:
        async with found.admin() as admin:
            await admin.topics.create("orders", queues=1)
        async with inorder.aio.Producer(found.pair.namesrv_address) as producer:
            await producer.send(
                "orders", EVIL.encode(), key=EVIL, tag="paid", properties={"note": EVIL}
            )
        consumer = await consume(found, fails=lambda _: True)
        browser = await found.operator()

        async def parked() -> bool:
            return "1 of 1 keys" in (await browser.get("/parked")).text

        await until(parked)
        key = "%3Cscript%3Ealert(1)%3C/script%3E%22'%3E%3Cimg%20src=x%20onerror=alert(2)%3E"
        for path in ("/messages?topic=orders", "/parked", f"/keys?topic=orders&key={key}",
                     "/message?topic=orders&queue=broker-a/0&offset=0", f"/find?q={key}",
                     f"/messages?topic=orders&key={key}", f"/topics/{key}", "/"):  # fmt: skip
            answer = await browser.get(path)
            assert "<script>alert" not in answer.body, path
            assert "<img" not in answer.body, path
        story_page = await browser.get(f"/keys?topic=orders&key={key}")
        assert "parked" in story_page.steps()
        await consumer.close()

    play(tmp_path, story)


def test_parked_keys_are_redriven_and_dropped(tmp_path: Path) -> None:
    """Dry run changes nothing, redrive handles in order, drop asks once more and wants a reason."""

    async def story(found: Site) -> None:
        await fill(found)
        mended: list[bool] = []
        consumer = await consume(
            found, fails=lambda one: one.key in ("order-1", "order-2") and not mended
        )
        browser = await found.operator()

        async def parked() -> bool:
            async with found.admin() as admin:
                return sum(one.messages for one in await admin.parked.list("billing")) == 6

        await until(parked)
        assert "2 of 2 keys" in (await browser.get("/parked")).text
        one, two = (f"billing\x1forders\x1f{key}".encode().hex() for key in ("order-1", "order-2"))
        csrf = (await browser.get("/parked")).csrf()
        dry = await browser.follow(
            await browser.post("/parked", {"csrf": csrf, "do": "dry", "key": [one, two]})
        )
        assert "6 messages of 2 keys would be redriven" in dry.text
        mended.append(True)
        await browser.post("/parked", {"csrf": csrf, "do": "redrive", "key": one, "rate": "100"})

        async def live() -> bool:
            return "1 of 1 keys" in (await browser.get("/parked")).text

        await until(live)
        ask = await browser.post("/parked", {"csrf": csrf, "do": "drop", "key": two})
        assert ask.status == 200
        assert "Throw the messages of 1 keys away" in ask.text
        sure = {"csrf": csrf, "do": "drop", "sure": "yes", "key": two}
        assert "Not done" in (await browser.follow(await browser.post("/parked", sure))).text
        done = await browser.follow(await browser.post("/parked", {**sure, "reason": "test"}))
        assert "3 messages are thrown away" in done.text
        log = (await browser.get("/settings")).text
        assert "drop order-2 of billing test" in log
        await consumer.close()

    play(tmp_path, story)


async def given_up(found: Site, count: int) -> None:
    """Let the group billing give up the messages of one key as dead letters."""
    await fill(found, count)
    consumer = inorder.aio.Consumer(
        found.pair.namesrv_address, group="billing", consume_from="first"
    )

    @consumer.on("orders", order="key", on_failure=inorder.DeadLetter(attempts=0))
    async def handle(message: inorder.ReceivedMessage) -> None:
        if message.key == "order-1":
            raise ValueError(f"no such customer {EVIL}")

    await consumer.start()
    store = found.pair.broker.store

    async def dead() -> bool:
        queue = store.find_queue("%DLQ%billing", 0)
        return queue is not None and queue.visible_offset == count // 4

    await until(dead)
    await consumer.close()


def letters_of(*offsets: int) -> list[str]:
    """Return what a form says of dead letters."""
    return [f"%DLQ%billing|broker-a|0|{one}".encode().hex() for one in offsets]


def test_dead_letters_are_shown_with_their_cause(tmp_path: Path) -> None:
    """By cause, one by one and alone; who is not signed in sees them and no form."""

    async def story(found: Site) -> None:
        await given_up(found, 12)
        browser = found.browser()
        page = await browser.get("/groups/billing/dead-letters")
        assert page.status == 200
        assert EVIL not in page.body
        assert f"ValueError: no such customer {EVIL} orders 3 1" in page.text
        assert "3 of 3 dead letters" in page.text
        assert 'method="post"' not in page.body
        some = await browser.get("/groups/billing/dead-letters?word=nothing")
        assert "No dead letter has this word" in some.text
        one = await browser.get("/message?topic=%25DLQ%25billing&queue=broker-a/0&offset=1")
        assert "All dead letters of billing" in one.text
        assert "Send again: sign in first." in one.text
        empty = await browser.get("/groups/billing")
        assert "Dead letters" in empty.text

    play(tmp_path, story)


def test_dead_letters_are_sent_again_once_and_in_order(tmp_path: Path) -> None:
    """As they were, to their topic, those of a key in their order; a second time sends nothing."""

    async def story(found: Site) -> None:
        await given_up(found, 16)
        browser = await found.operator()
        base = "/groups/billing/dead-letters"
        csrf = (await browser.get(base)).csrf()

        async def post(do: str, *offsets: int) -> str:
            fields = {"csrf": csrf, "do": do, "letter": letters_of(*offsets), "reason": "mended"}
            return (await browser.follow(await browser.post(base, fields))).text

        async def stored_now() -> list[inorder.ReceivedMessage]:
            async with found.admin() as admin:
                views = (await admin.topics.describe("orders")).queues
                return [one for each in views
                        for one in (await admin.messages.read(each.queue, 0)).messages]  # fmt: skip

        assert "2 dead letters would be sent again; nothing has changed" in await post("dry", 2, 0)
        assert len(await stored_now()) == 16
        assert "2 dead letters sent again, to the topics of origin" in await post("send", 2, 0)
        assert (
            "2 dead letters sent again, to the topics of origin; 2 were sent again before"
            in await post("send", 3, 2, 1, 0)
        )
        again = [one for one in await stored_now() if "inorder_source" in one.properties]
        assert [one.properties["inorder_source"][-1] for one in again] == ["0", "2", "1", "3"]
        assert {(one.key, one.tag) for one in again} == {("order-1", "paid")}
        assert [one.body for one in again] == [b'{"n": %d}' % n for n in (1, 9, 5, 13)]
        assert "INORDER_DEAD_ERROR" not in again[0].properties
        assert "Not done: choose at least one" in await post("send")
        assert "Not done" in await post("send", 99)
        assert (
            "send 2 dead letters of billing again mended" in (await browser.get("/settings")).text
        )

    play(tmp_path, story)


def test_a_reset_is_previewed_and_then_done(tmp_path: Path) -> None:
    """The preview changes nothing and counts; a wrong confirmation and a stale preview refuse."""

    async def story(found: Site) -> None:
        await fill(found)
        consumer = await consume(found)
        browser = await found.operator()

        async def done() -> bool:
            return "To do 0" in (await browser.get("/groups/billing")).text

        await until(done)
        await consumer.close()
        page = "/groups/billing/offsets?topic=orders&to=beginning"
        before = await state_of(found)
        preview = await browser.get(page)
        assert "Handled again 12" in preview.text
        assert await state_of(found) == before
        wrong = await browser.submit(page, "Reset billing", "/groups/billing/offsets",
                                     confirm="x", reason="again")  # fmt: skip
        assert "type billing to confirm" in wrong.text
        fields = preview.form("Reset billing")
        stale = [f"{one.rpartition('=')[0]}=999" for one in fields["seen"]]
        refused = await browser.follow(
            await browser.post("/groups/billing/offsets", {
                **fields, "confirm": "billing", "reason": "again", "seen": stale})
        )  # fmt: skip
        assert "have moved since the preview" in refused.text
        assert await state_of(found) == before
        await browser.submit(page, "Reset billing", "/groups/billing/offsets",
                             confirm="billing", reason="again")  # fmt: skip
        assert (await state_of(found))[3] == [0, 0]

    play(tmp_path, story)


def test_a_queue_is_taken_away(tmp_path: Path) -> None:
    """The owner that is shown loses the queue, with a reason."""

    async def story(found: Site) -> None:
        await fill(found)
        consumer = await consume(found)
        browser = await found.operator()

        async def owned() -> bool:
            return "broker-a/1 orders" in (await browser.get("/groups/billing/owners")).text

        await until(owned)
        page = await browser.submit(
            "/groups/billing/owners", "Take queue broker-a/1 away", "/groups/billing/take",
            reason="frozen",
        )  # fmt: skip
        assert "queue broker-a/1 of orders is taken away" in page.text
        await consumer.close()

    play(tmp_path, story)


def test_an_audit_runs_in_a_process_of_its_own(tmp_path: Path) -> None:
    """Stored messages and traced handlers are judged; the report stays on the page."""

    async def story(found: Site) -> None:
        await fill(found)
        consumer = await consume(found, trace=True)
        browser = await found.operator()

        async def done() -> bool:
            return "To do 0" in (await browser.get("/groups/billing")).text

        await until(done)
        await consumer.close()
        await browser.submit("/audit", "Run the audit", "/audit", topic="orders", group="billing")

        async def judged() -> str:
            text = (await browser.get("/audit")).text
            return text if "in order nothing is lost" in text else ""

        assert "12 messages, 12 calls of handlers" in await until(judged)

    play(tmp_path, story)


def test_live_pages_send_what_changes(tmp_path: Path) -> None:
    """A page's live sections come once, then only those that differ, each with the data's age."""

    async def story(found: Site) -> None:
        await fill(found)
        events = await live_events(found.address, "/topics/orders", 6)
        ids = [data["id"] for name, data in events if name == "section"]
        assert ids[:3] == ["facts", "heat", "queues"]
        assert "pulse" in [name for name, _ in events]
        assert (await found.browser().get("/live?at=https%3A%2F%2Fevil")).status == 400

    play(tmp_path, story)


def test_a_broker_that_is_down_is_a_row(tmp_path: Path) -> None:
    """Pages stay, say what does not answer, and keep what was seen."""

    async def story(found: Site) -> None:
        await fill(found)
        browser = found.browser()
        assert "Brokers 1 of 1" in (await browser.get("/")).text
        found.pair.abandon()

        async def said() -> bool:
            page = await browser.get("/")
            assert page.status == 200
            return "does not answer" in page.text or "failed" in page.text

        await until(said)
        page = await browser.get("/topics/orders")
        assert page.status in (404, 502)

    play(tmp_path, story)


def test_ten_thousand_topics_come_in_pages(tmp_path: Path) -> None:
    """The list stays quick: one page of fifty, found by name, in less than a second."""

    async def story(found: Site) -> None:
        broker = found.pair.broker
        for number in range(10_000):
            broker.topics.put(TopicConfig(f"t-{number:05d}", 1, 1), 0)
        await broker.registration.register_now()
        browser = found.browser()

        async def listed() -> bool:
            return "of 10,000 topics" in (await browser.get("/topics")).text

        await until(listed)
        loop = asyncio.get_running_loop()
        began = loop.time()
        page = await browser.get("/topics?page=2")
        spent = loop.time() - began
        assert "50 of 10,000 topics" in page.text
        assert "page 2 of 200" in page.text
        assert spent < 5, "broker and console share this process; alone it takes a fifth"
        assert "1 of 1 topics" in (await browser.get("/topics?word=t-00123")).text

    play(tmp_path, story)


# Brokers with users.


def test_people_sign_in_as_users_of_the_brokers(tmp_path: Path) -> None:
    """Each request is signed by who is signed in: what a user may not do, the broker refuses."""

    async def story(found: Site) -> None:
        roots = Credentials(*ROOT)
        async with found.admin(credentials=roots) as admin:
            await admin.topics.create("orders", queues=1)
            await admin.users.create("alice", SECRETS["alice"])
            await admin.acls.set("alice", ["Cluster:*"], ["Get", "List"])
            await admin.acls.set("alice", ["Topic:*", "Group:*"], ["Get", "List", "Sub"])
        await asyncio.sleep(0.3)
        browser = found.browser()
        stranger = await browser.get("/topics")
        assert stranger.headers["location"] == "/sign-in?back=%2Ftopics"
        assert "With a user of the brokers" in (await browser.get("/sign-in")).text
        for name, secret in (("alice", "wrong"), ("nobody", SECRETS["alice"]), ("", "")):
            refused = await browser.post("/sign-in", {"name": name, "secret": secret})
            assert refused.status == 403
            assert browser.cookies == {}
        # The console's token signs nothing: its holder gets nothing from these brokers.
        holder = await found.operator()
        assert (await holder.get("/topics")).status == 403
        answer = await browser.post(
            "/sign-in", {"name": "alice", "secret": SECRETS["alice"], "back": "/topics"}
        )
        assert answer.headers["location"] == "/topics"
        assert "orders" in (await browser.get("/topics")).text
        refused = await browser.submit(
            "/topics/orders/send", "Send a message to orders", "/topics/orders/send", body="x"
        )
        assert "Not done" in refused.text
        assert stored(found.pair.broker) == {}
        root = found.browser()
        await root.post("/sign-in", {"name": ROOT[0], "secret": ROOT[1]})
        sent = await root.submit(
            "/topics/orders/send", "Send a message to orders", "/topics/orders/send", body="x"
        )
        assert "is stored at broker-a/0 @ 0" in sent.text

    play(tmp_path, story, access=SETTINGS)


def test_a_name_is_no_way_in_where_nobody_checks_it(tmp_path: Path) -> None:
    """Brokers without users accept any signature, so a name and a secret sign nobody in."""

    async def story(found: Site) -> None:
        browser = found.browser()
        refused = await browser.post("/sign-in", {"name": "root", "secret": "anything-at-all"})
        assert refused.status == 403
        assert "have no users" in refused.text
        assert browser.cookies == {}

    play(tmp_path, story)


def test_queue_names_are_read_back(tmp_path: Path) -> None:
    """A path names a queue by broker and number; broker names may hold slashes."""
    from inorder.console.app import queue_of

    assert queue_of("t", "a/b/3") == TopicQueue("t", "a/b", 3)
    assert queue_of("t", "a/x") is None
    assert queue_of("t", "") is None
