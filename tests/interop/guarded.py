"""`inorder up` with access control, for stock clients: users, topics, and what is stored.

Requests of the tests themselves are signed here with hmac alone: a mistake in our signature cannot
hide itself.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from bench.process import free_ports
from bench.systems import start_ours
from tests.interop.rawclient import GET_ROUTE, RawClient, body_of

ROOT = ("root", "the-secret-of-root")
READY_TIMEOUT_S = 30
QUEUES = 4
BROKER_RUNTIME_INFO = 28
INIT = json.dumps({"username": ROOT[0], "password": ROOT[1]}, separators=(",", ":"))
INNER = json.dumps({"accessKey": "inner", "secretKey": "the-inner-secret"}, separators=(",", ":"))
USERS_AND_RULES = {"access.level": "enforce", "access.init_user": INIT}
SECRET_SETTINGS = ("access.init_user", "access.inner_credentials")
"""Settings that no command line may have."""


class SignedClient(RawClient):
    """A connection of the super user."""

    def __init__(self, address: tuple[str, int], user: tuple[str, str] = ROOT) -> None:
        super().__init__(address)
        self._user = user

    def send(
        self, code: int, fields: dict[str, Any] | None = None, body: bytes = b"", *, flag: int = 0
    ) -> int:
        """Sign a request and write it."""
        name, secret = self._user
        given = {key: _text(value) for key, value in (fields or {}).items()} | {"AccessKey": name}
        content = "".join(given[key] for key in sorted(given)).encode() + body
        digest = hmac.new(secret.encode(), content, hashlib.sha1).digest()
        given["Signature"] = base64.b64encode(digest).decode()
        return super().send(code, given, body, flag=flag)


class Guarded:
    """A name server and a broker that control access."""

    def __init__(self, settings: Mapping[str, object], *, root: tuple[str, str] = ROOT) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="inorder-guarded-"))
        self.root = root
        namesrv_port, port = free_ports(2)
        self.address, self.namesrv = ("127.0.0.1", port), ("127.0.0.1", namesrv_port)
        file = self.directory / "settings.toml"
        given = {"access.inner_credentials": INNER, **settings}
        secrets = [f"{name} = '{given.pop(name)}'" for name in SECRET_SETTINGS if name in given]
        file.write_text("\n".join(("[broker]", *secrets, "")))
        flags = {
            "broker-port": port, "namesrv-port": namesrv_port, "data": self.directory / "data",
            "config": file,
        }  # fmt: skip
        self.child = start_ours("up", self.directory, flags=flags, settings=given)
        try:
            self.child.wait_until(
                lambda: "\nready " in f"\n{self.log()}", timeout_s=READY_TIMEOUT_S
            )
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the servers and delete their data."""
        self.child.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def log(self) -> str:
        """Return what the servers have printed."""
        return self.child.output_path.read_text(errors="replace")

    def raw(self) -> SignedClient:
        """Connect to the broker as the super user."""
        return SignedClient(self.address, self.root)

    def make_topic(self, topic: str) -> None:
        """Create a topic and wait until a client finds it."""
        with self.raw() as raw:
            raw.create_topic(topic, QUEUES)
        with SignedClient(self.namesrv, self.root) as names:
            self.child.wait_until(
                lambda: names.request(GET_ROUTE, {"topic": topic}).code == 0, timeout_s=10
            )

    def stored(self, topic: str) -> dict[int, list[int]]:
        """Return the numbers in each queue of a topic."""
        with self.raw() as raw:
            return {
                queue: [int(body_of(record)) for record in raw.read_queue(topic, queue)]
                for queue in range(QUEUES)
            }

    def state(self, topic: str, group: str) -> object:
        """Return what a refused client must not change."""
        with self.raw() as raw:
            offsets = [raw.committed(group, topic, queue) for queue in range(QUEUES)]
            topics = sorted(raw.topic_queues())
        return self.stored(topic), offsets, topics, self.users()

    def users(self) -> object:
        """Return the file of users and rules."""
        path = self.directory / "data" / "inorder" / "access.json"
        return path.read_bytes() if path.exists() else b""

    def refused(self) -> int:
        """Return how many requests the broker has refused."""
        with self.raw() as raw:
            table = json.loads(raw.call(BROKER_RUNTIME_INFO).body)["table"]
        return int(table["accessRefused"])


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
