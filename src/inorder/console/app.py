"""The console: which page answers a path, who may ask, and what is sent while a page is open.

    guard     the Host header names this console
    get       pages, and with .json the same as data; /live sends a page's live sections again
              when they change; /static
    post      changes (`console/actions.py`): from this console's pages, with the session's token

A page asks the cluster with the visitor's own credentials. What goes wrong is a page that says
what, which object and what to do next. Why no framework and no script but a small one: decision 57.
"""

from __future__ import annotations

import asyncio
import difflib
import hmac
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from importlib import resources
from typing import Final

import inorder
from inorder.client.rules.traces import TraceView
from inorder.clock import Clock
from inorder.console import data, letters, reads, story, web
from inorder.console.actions import Actions, ReadTime
from inorder.console.audit import Audits
from inorder.console.markup import Html, el
from inorder.console.pages import cluster, groups, messages, topics
from inorder.console.pages import letters as letter_pages
from inorder.console.pages.frame import (
    Page,
    Viewer,
    enter_page,
    error_page,
    link,
    sign_in_page,
    whole,
)
from inorder.console.rules import (
    Finding,
    Level,
    Rows,
    host_is_ours,
    origin_is_ours,
    page_of,
    path,
    path_is_local,
)
from inorder.console.sessions import Sessions, SignInRefused, Visitor
from inorder.console.web import Ask
from inorder.errors import (
    AccessDenied,
    GroupNotFound,
    InorderError,
    NotFound,
    TopicNotRouted,
    UsageError,
)
from inorder.logs import get_logger
from inorder.model import TopicQueue
from inorder.net import http
from inorder.net.http import HttpServer, Request, Response

log = get_logger("inorder.console")

PAGE_S: Final = 20.0
LIVE_S: Final = 2.0
LIVE_ROUNDS: Final = 1_800
LIVE_MAX: Final = 48
CONNECTIONS_MAX: Final = 256
MESSAGES_SHOWN: Final = 50
STATIC: Final = {
    "console.css": "text/css; charset=utf-8",
    "console.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}

PageOf = Callable[[Ask, Visitor], Awaitable[Page]]


def queue_of(topic: str, text: str) -> TopicQueue | None:
    """Return the queue that `broker/index` names; None: the text is empty or names none."""
    broker, slash, index = text.rpartition("/")
    return TopicQueue(topic, broker, int(index)) if slash and index.isdecimal() else None


class Console:
    """One console and its HTTP server."""

    def __init__(
        self,
        sessions: Sessions,
        clock: Clock,
        *,
        name_servers: str,
        read_time: ReadTime,
        hosts: Iterable[str] = (),
    ) -> None:
        """`read_time` reads a time that a person has written: `10m`, `2026-11-16T11:00:00Z`."""
        self._sessions = sessions
        self._clock = clock
        self._name_servers = name_servers
        self._hosts = tuple(hosts)
        self._audits = Audits(clock)
        self._live = 0
        self._cookie = "inorder_console"
        self._files = _static()
        self._server = HttpServer(
            {("GET", "/*"): self._get, ("POST", "/*"): self._post},
            name="console",
            guard=self._guard,
            headers=web.GUARDS,
            connections_max=CONNECTIONS_MAX,
            requests_max=1000,
            body_bytes_max=web.BODY_BYTES_MAX,
        )
        self._read_time = read_time
        self._actions = Actions(sessions, self._audits, clock, read_time)
        self._pages: dict[str, PageOf] = {
            "": self._overview,
            "topics": self._topics,
            "groups": self._groups,
            "messages": self._messages,
            "message": self._message,
            "keys": self._keys,
            "parked": self._parked,
            "brokers": self._brokers,
            "audit": self._audit,
            "settings": self._settings,
            "find": self._find,
        }

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; return the address."""
        address = await self._server.start(host, port)
        self._cookie = f"inorder_console_{address[1]}"  # cookies know hosts, not ports
        return address

    async def stop(self) -> None:
        """Stop serving, and sign everybody out."""
        await self._server.close()
        await self._audits.close()
        await self._sessions.close()

    # Requests.

    def _guard(self, request: Request) -> Response | None:
        if host_is_ours(request.headers.get("host", ""), self._hosts):
            return None
        return http.text("this console has another name; start it with --allow-host NAME", 421)

    async def _get(self, request: Request) -> Response:
        parts = web.parts_of(request.path)
        if parts[:1] == ("static",):
            return self._static(parts[1:])
        page_parts = data.page_parts(parts)
        if page_parts is not None:
            return await self._data(Ask(page_parts, request.query, {}, _target(request)), request)
        target = _target(request)
        ask = Ask(parts, request.query, {}, target)
        visitor = self._sessions.find(web.cookie_of(request, self._cookie))
        if parts == ("live",):
            return self._live_answer(ask, visitor)
        if parts == ("enter",):
            return web.page(self._frame(enter_page(ask.word("token")), visitor, target))
        if parts == ("sign-in",):
            return await self._sign_in(ask, visitor)
        if not visitor.signed_in and not self._sessions.looks:
            return web.go(path("sign-in", back=target))
        try:
            page = await self._page(ask, visitor)
        except AccessDenied as error:
            if not visitor.signed_in:
                return web.go(path("sign-in", back=target))
            page = error_page("Not allowed", error, 403, "Ask who administers the users.")
        return web.page(self._frame(page, visitor, target), page.status)

    async def _data(self, ask: Ask, request: Request) -> Response:
        """Return a page as data; who may not see it gets no page to sign in, but the reason."""
        visitor = self._sessions.find(web.cookie_of(request, self._cookie))
        if not visitor.signed_in and not self._sessions.looks:
            return http.as_json({"error": "sign in first"}, 401)
        try:
            page = await self._page(ask, visitor)
        except AccessDenied as error:
            return http.as_json({"error": str(error)}, 403 if visitor.signed_in else 401)
        if not page.data:
            return http.as_json({"error": "this page is a form and has no data"}, 404)
        if page.status != 200:
            return http.as_json(data.plain(page.data), page.status)
        shot = visitor.watch.snapshot
        return http.as_json(
            {"title": page.title, "seen_at_ms": shot.at_ms, "command": page.cli,
             "data": data.plain(page.data)}
        )  # fmt: skip

    async def _page(self, ask: Ask, visitor: Visitor) -> Page:
        """Return the page of a path, or one that says why there is none. Raises AccessDenied."""
        make = self._pages.get(ask.parts[0] if ask.parts else "")
        if make is None:
            return error_page("Not found", "There is no such page.", 404, link("Overview", "/"))
        try:
            async with asyncio.timeout(PAGE_S):
                await visitor.watch.look()
                if visitor.watch.snapshot.denied:
                    raise AccessDenied(visitor.watch.snapshot.error)
                return await make(ask, visitor)
        except AccessDenied:
            raise
        except TimeoutError:
            text = f"The cluster did not answer within {PAGE_S:.0f} s. Read again, or ask for less."
            return error_page("No answer in time", text, 504)
        except (TopicNotRouted, GroupNotFound, NotFound) as error:
            return error_page("Not found", error, 404, await self._nearest(ask, visitor))
        except UsageError as error:
            return error_page("This cannot be shown", error, 400)
        except (InorderError, OSError) as error:
            return error_page("The cluster did not answer", InorderError(str(error)), 502,
                              "Is the name server there, and the broker? See Brokers.")  # fmt: skip

    async def _nearest(self, ask: Ask, visitor: Visitor) -> Html | None:
        name = ask.parts[1] if len(ask.parts) > 1 else ask.word("topic")
        if not name:
            return None
        is_group = ask.parts[:1] == ("groups",)
        try:
            known = (
                visitor.watch.snapshot.group_names
                if is_group
                else await visitor.admin.topics.names()
            )
        except InorderError:
            return None
        near = difflib.get_close_matches(name, known, n=1)
        if not near:
            return None
        to = path("groups" if is_group else "topics", near[0])
        return el("span", "Did you mean ", link(near[0], to), "?")

    async def _post(self, request: Request) -> Response:
        headers = request.headers
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if not origin_is_ours(origin, site, headers.get("host", "")):
            return http.text("a change must come from a page of this console", 403)
        ask = Ask(web.parts_of(request.path), request.query, web.form_of(request), _target(request))
        if ask.parts == ("sign-in",):
            return await self._enter(ask, self._sessions.by_name(ask.sent("name").strip(),
                                                                 ask.sent("secret")))  # fmt: skip
        if ask.parts == ("enter",):
            return await self._enter(ask, self._sessions.by_token(ask.sent("token").strip()))
        id_ = web.cookie_of(request, self._cookie)
        visitor = self._sessions.find(id_)
        if not visitor.signed_in:
            return http.text("sign in first; nothing was changed", 401)
        if not hmac.compare_digest(ask.sent("csrf").encode(), visitor.csrf.encode()):
            return http.text("the form is out of date; open the page again", 403)
        if ask.parts == ("sign-out",):
            await self._sessions.leave(id_)
            return web.go("/", {"Set-Cookie": self._set_cookie("", 0)})
        answer = await self._actions.do(ask, visitor)
        if isinstance(answer, Page):
            return web.page(self._frame(answer, visitor, ask.target), answer.status)
        return web.go(answer)

    async def _enter(self, ask: Ask, signing: Awaitable[str]) -> Response:
        back = ask.sent("back")
        try:
            id_ = await signing
        except SignInRefused as error:
            page = sign_in_page(back, with_users=await self._with_users(), failure=str(error))
            return web.page(self._frame(page, self._sessions.nobody, "/sign-in"), 403)
        to = back if path_is_local(back) else "/"
        return web.go(to, {"Set-Cookie": self._set_cookie(id_, 8 * 3600)})

    def _set_cookie(self, value: str, seconds: int) -> str:
        return f"{self._cookie}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}"

    async def _sign_in(self, ask: Ask, visitor: Visitor) -> Response:
        page = sign_in_page(ask.word("back"), with_users=await self._with_users())
        return web.page(self._frame(page, visitor, ask.target))

    async def _with_users(self) -> bool | None:
        try:
            async with asyncio.timeout(5):
                return await self._sessions.brokers_have_users()
        except (InorderError, TimeoutError):
            return None  # not known: the cluster does not answer

    def _static(self, parts: tuple[str, ...]) -> Response:
        name = parts[0] if len(parts) == 1 else ""
        if name not in self._files:
            return http.text("there is no such file", 404)
        headers = {"Cache-Control": "max-age=300"}
        return Response(self._files[name], 200, STATIC[name], headers)

    def _viewer(self, visitor: Visitor, *, notices: bool) -> Viewer:
        shot = visitor.watch.snapshot
        told = tuple(visitor.notices) if notices else ()
        if notices:
            visitor.notices.clear()
        return Viewer(
            visitor.name, visitor.signed_in, visitor.csrf, self._name_servers,
            len(shot.parked or ()), shot.at_ms, "" if shot.denied else shot.error, told,
            inorder.__version__,
        )  # fmt: skip

    def _frame(self, page: Page, visitor: Visitor, at: str) -> Html:
        return whole(page, self._viewer(visitor, notices=visitor.signed_in), at)

    # Live.

    def _live_answer(self, ask: Ask, visitor: Visitor) -> Response:
        at = ask.word("at")
        if not path_is_local(at):
            return http.text("say which page", 400)
        if not visitor.signed_in and not self._sessions.looks:
            return http.text("sign in first", 401)
        if self._live >= LIVE_MAX:
            return http.text("too many live pages are open", 503)
        where, query = http.split_target(at)
        return http.events(self._changes(Ask(web.parts_of(where), query, {}, at), visitor))

    async def _changes(self, ask: Ask, visitor: Visitor) -> AsyncIterator[bytes]:
        """Give the live sections of a page whenever they have changed."""
        self._live += 1
        sent: dict[str, Html] = {}
        try:
            for _ in range(LIVE_ROUNDS):
                try:
                    page = await self._page(ask, visitor)
                except AccessDenied:
                    return
                if not any(one.live for one in page.sections):
                    return
                for section in page.sections:
                    if section.live and sent.get(section.id) != section.html:
                        sent[section.id] = section.html
                        change = {"id": section.id, "html": section.html}
                        yield http.event(json.dumps(change), name="section")
                shot = visitor.watch.snapshot
                age_ms = self._clock.now_ms() - shot.at_ms if shot.at_ms else None
                pulse = {"age_ms": age_ms, "error": shot.error}
                yield http.event(json.dumps(pulse), name="pulse")
                await asyncio.sleep(LIVE_S)
        finally:
            self._live -= 1

    # Pages.

    async def _overview(self, ask: Ask, visitor: Visitor) -> Page:
        if ask.parts:
            raise NotFound("there is no such page")
        return cluster.overview(
            visitor.watch.snapshot, visitor.watch.history, self._clock.now_ms()
        )  # fmt: skip

    async def _topics(self, ask: Ask, visitor: Visitor) -> Page:
        admin, now_ms = visitor.admin, self._clock.now_ms()
        match ask.parts[1:]:
            case ():
                configs, silent = await reads.topics(admin)
                rows = page_of(sorted(configs), ask.number("page"), word=ask.word("word"))
                views = await reads.topic_views(admin, rows.rows)
                return topics.topics(rows, configs, views, silent)
            case (name,):
                view = await admin.topics.describe(name)
                state = await reads.resize_state(admin, name)
                queues = page_of(view.queues, ask.number("page"), size=200)
                return topics.topic(view, state, queues, now_ms)
            case (name, "resize"):
                await admin.topics.configs(name)
                return topics.resize(
                    name, await reads.resize_state(admin, name),
                    self._viewer(visitor, notices=False),
                )  # fmt: skip
            case (name, "send"):
                await admin.topics.configs(name)
                return topics.send(name, self._viewer(visitor, notices=False))
        raise NotFound("there is no such page")

    async def _groups(self, ask: Ask, visitor: Visitor) -> Page:
        watch, now_ms = visitor.watch, self._clock.now_ms()
        viewer = self._viewer(visitor, notices=False)
        match ask.parts[1:]:
            case ():
                rows = page_of(
                    watch.snapshot.group_names, ask.number("page"), word=ask.word("word")
                )
                return cluster.group_table(rows, watch.snapshot, watch.history, now_ms)
            case (name,):
                found = await reads.group(visitor.admin, name)
                worst = sorted(found.lags, key=lambda one: (-one.lag, one.queue))
                lags = page_of(worst, ask.number("page"))
                return groups.group(found, lags, watch.history, now_ms)
            case (name, "owners"):
                return await self._owners(name, ask, visitor)
            case (name, "offsets"):
                return await self._offsets(name, ask, visitor, viewer)
            case (name, "dead-letters"):
                return await self._dead_letters(name, ask, visitor, viewer)
        raise NotFound("there is no such page")

    async def _owners(self, name: str, ask: Ask, visitor: Visitor) -> Page:
        try:
            locks = await visitor.admin.locks.list(name)
        except UsageError:
            locks = None
        return groups.owners(
            name, locks, page_of(locks or (), ask.number("page")), visitor.watch.history,
            self._viewer(visitor, notices=False), self._clock.now_ms(),
        )  # fmt: skip

    async def _dead_letters(self, name: str, ask: Ask, visitor: Visitor, viewer: Viewer) -> Page:
        await visitor.admin.groups.describe(name)
        found, total = await reads.dead_letters(visitor.admin, name)
        rows = page_of(found, ask.number("page"), word=ask.word("word"),
                       name=lambda one: f"{one.key} {one.origin} {one.cause}")  # fmt: skip
        return letter_pages.dead_letters(
            name, rows, letters.causes(found), len(found), total, viewer
        )

    async def _offsets(self, name: str, ask: Ask, visitor: Visitor, viewer: Viewer) -> Page:
        view = await visitor.admin.groups.describe(name)
        names = sorted({one.queue.topic for one in view.queues})
        topic, to = ask.word("topic"), ask.word("to")
        if not topic or not to:
            return groups.offsets(name, names, topic, to, None, {}, viewer)
        try:
            target = to if to in ("beginning", "end") else self._read_time(to, self._clock.now_ms())
            rows = await reads.reset_preview(visitor.admin, name, topic, target)
        except UsageError as error:
            return groups.offsets(name, names, topic, to, None, {}, viewer, str(error))
        parked = [
            one for one in visitor.watch.snapshot.parked or () if (one.group, one.topic)
            == (name, topic)
        ]  # fmt: skip
        state = await reads.resize_state(visitor.admin, topic)
        more = {
            "Members online": str(len(view.members)),
            "Parked keys, which stay parked": str(len(parked)),
            "Key map": "not known" if state is None else f"version {state.version}",
        }
        return groups.offsets(name, names, topic, to, rows, more, viewer)

    async def _messages(self, ask: Ask, visitor: Visitor) -> Page:
        names = await visitor.admin.topics.names()
        topic = ask.word("topic")
        asked = {one: ask.word(one) for one in ("queue", "key", "id", "since", "offset", "tag")}
        if not topic:
            return messages.messages("", names, asked, None, ())
        configs = await visitor.admin.topics.configs(topic)
        queues = [
            TopicQueue(topic, broker, index)
            for broker, config in sorted(configs.items())
            for index in range(config.read_queues)
        ]
        try:
            found = await self._search(ask, visitor, topic)
        except (UsageError, NotFound) as error:
            return messages.messages(topic, names, asked, None, queues, str(error))
        return messages.messages(topic, names, asked, found, queues)

    async def _search(self, ask: Ask, visitor: Visitor, topic: str) -> reads.Found:
        admin, count = visitor.admin, MESSAGES_SHOWN
        queue = queue_of(topic, ask.word("queue"))
        since = (
            self._read_time(ask.word("since"), self._clock.now_ms()) if ask.word("since") else None
        )
        if ask.word("id"):
            return reads.Found(await admin.messages.by_id(topic, ask.word("id")), how="by id")
        if ask.word("key"):
            found = await reads.with_key(admin, self._clock, topic, ask.word("key"), since)
        elif queue and ask.word("offset"):
            found = await reads.from_offset(admin, queue, ask.number("offset", 0), count)
        elif since is not None:
            rows = await admin.messages.by_time(topic, since, count=count)
            found = reads.Found(rows, how=f"stored since {since.isoformat(timespec='seconds')}")
        else:
            found = await reads.newest(admin, topic, count, queue)
        tag = ask.word("tag")
        if not tag:
            return found
        rows = [one for one in found.messages if one.tag == tag]
        return reads.Found(rows, found.scanned, found.cut, f"{found.how}, with tag {tag}",
                           found.next_offset)  # fmt: skip

    async def _message(self, ask: Ask, visitor: Visitor) -> Page:
        queue = queue_of(ask.word("topic"), ask.word("queue"))
        if queue is None:
            raise UsageError("name a topic, a queue (broker/number) and an offset")
        one = await visitor.admin.messages.by_offset(queue, ask.number("offset", 0))
        traced: Sequence[TraceView] | str
        try:
            traced = await visitor.admin.messages.traces(one.message_id)
        except TopicNotRouted:
            traced = "There is no trace topic: brokers make one with traceTopicEnable=true."
        except InorderError as error:
            traced = f"Traces could not be read: {error}"
        return messages.message(one, traced, self._viewer(visitor, notices=False))

    async def _keys(self, ask: Ask, visitor: Visitor) -> Page:
        names = await visitor.admin.topics.names()
        topic, key, group = ask.word("topic"), ask.query.get("key", ""), ask.word("group")
        form = messages.key_form(names, topic, key, group, ask.word("since"))
        if not topic or not key:
            return messages.ask_key(form)
        try:
            since = (
                self._read_time(ask.word("since"), self._clock.now_ms())
                if ask.word("since")
                else None
            )
        except UsageError as error:
            return messages.ask_key(form, str(error))
        began = self._clock.monotonic_ms()
        told = await reads.evidence(visitor.admin, self._clock, topic, key, since)
        spent = self._clock.monotonic_ms() - began
        if group:
            told = told.for_group(group)
        verdicts = [story.judge(told, one) for one in told.groups] if told.messages else []
        return messages.story(told, story.tell(told), verdicts, form, spent)

    async def _parked(self, ask: Ask, visitor: Visitor) -> Page:
        shot = visitor.watch.snapshot
        group = ask.word("group")
        rows = None
        full = {place: why for place, why in shot.full.items() if group in ("", place[0])}
        if shot.parked is not None:
            keys = await visitor.admin.parked.list(group or None)
            rows = page_of(keys, ask.number("page"))
        return groups.parked(
            rows, full, group, shot.group_names[:1000], self._viewer(visitor, notices=False),
            self._clock.now_ms(),
        )  # fmt: skip

    async def _brokers(self, ask: Ask, visitor: Visitor) -> Page:
        return cluster.brokers(visitor.watch.snapshot.brokers)

    async def _audit(self, ask: Ask, visitor: Visitor) -> Page:
        names = await visitor.admin.topics.names()
        return cluster.audit(
            names, ask.word("topic"), ask.word("group"), list(self._audits.jobs),
            self._viewer(visitor, notices=False),
        )  # fmt: skip

    async def _settings(self, ask: Ask, visitor: Visitor) -> Page:
        names = [one.name for one in visitor.watch.snapshot.brokers]
        broker = ask.word("broker") or (names[0] if names else "")
        rows: Rows[tuple[str, str]] | None = None
        error = ""
        if broker:
            try:
                found = sorted((await visitor.admin.cluster.settings(broker)).items())
                rows = page_of(found, ask.number("page"), word=ask.word("word"),
                               name=lambda one: one[0])  # fmt: skip
            except AccessDenied:
                raise
            except InorderError as failure:
                error = str(failure)
        users = await self._with_users()
        own = {
            "Version": inorder.__version__,
            "Name servers": self._name_servers,
            "Signed in as": visitor.name or "nobody",
            "Users": "not known" if users is None else "of the brokers" if users else
            "none at these brokers: a token of the console signs in",
            "Not signed in": "may look" if self._sessions.looks else "may see nothing",
        }  # fmt: skip
        made = visitor.link if visitor.signed_in else ""
        visitor.link = ""
        return cluster.settings(
            names, broker, rows, error, self._viewer(visitor, notices=False), own,
            self._sessions.log if visitor.signed_in else (), made, with_links=users is False,
        )  # fmt: skip

    async def _find(self, ask: Ask, visitor: Visitor) -> Page:
        word = ask.word("q")
        names = await visitor.admin.topics.names()
        found = [
            Finding(Level.OK, f"topic {one}", path("topics", one))
            for one in names if word.casefold() in one.casefold()
        ][:20]  # fmt: skip
        found += [
            Finding(Level.OK, f"group {one}", path("groups", one))
            for one in visitor.watch.snapshot.group_names if word.casefold() in one.casefold()
        ][:20]  # fmt: skip
        parked = {
            (one.group, one.topic, one.key)
            for one in visitor.watch.snapshot.parked or ()
            if word in one.key
        }
        found += [
            Finding(Level.WARN, f"parked key {key} of {group}",
                    path("keys", topic=topic, key=key, group=group))
            for group, topic, key in sorted(parked)[:20]
        ]  # fmt: skip
        scope = [
            el("p", "As a key or a message id it can be looked for in a topic:"),
            el("ul", [
                el("li", one, ": ", link("key", path("keys", topic=one, key=word)), " · ",
                   link("id", path("messages", topic=one, id=word)))
                for one in names[:50]
            ], class_="list"),
        ] if word and names else []  # fmt: skip
        return cluster.find(word, found if word else [], scope)


def _target(request: Request) -> str:
    return path(*web.parts_of(request.path), **dict(request.query)) if request.path != "/" else "/"


def _static() -> dict[str, bytes]:
    folder = resources.files("inorder.console") / "static"
    return {name: folder.joinpath(name).read_bytes() for name in STATIC}
