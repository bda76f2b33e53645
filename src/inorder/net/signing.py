"""The signing of requests: one `Signer` for each connection of a client that has credentials.

A request is signed where it becomes a frame, so every retry is signed anew: `signed` takes a
command, `signed_head` the head of a frame that was made from a template. Answers are not signed.

A server of ours gives the connection a session with its first answers. From then on each request
has the session, a counter and a mark over all of them (`wire/signature.py`).

`explain` turns the refusal of a server with access control into an answer that says who was refused
and what to do.
"""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING, Final, Protocol

import msgspec
from msgspec.json import encode

from inorder.credentials import ACCESS_KEY, SECRET_KEY
from inorder.errors import LocalProtocolError, is_denial
from inorder.wire.codes import ResponseCode
from inorder.wire.extensions import BOUND, COUNTER, SESSION
from inorder.wire.frame import FRAME_BYTES_MAX
from inorder.wire.header import HEADER_BYTES_MAX, Command
from inorder.wire.signature import AK, SIGNATURE, TOKEN, Keys, bound_content, content

if TYPE_CHECKING:
    from inorder.credentials import Credentials

_PREFIX: Final = struct.Struct(">II")
_FIELDS: Final = b'"extFields":{'
_OWN: Final = frozenset((AK, TOKEN, SIGNATURE, SESSION, COUNTER, BOUND))


class _Head(msgspec.Struct, gc=False):
    """The part of a header that is signed."""

    code: int
    extFields: dict[str, str]


_decode: Final = msgspec.json.Decoder(_Head).decode


class Signer:
    """The credentials on one connection, its session and its counter."""

    __slots__ = ("_counter", "_keys", "_names", "_session", "user")

    def __init__(self, credentials: Credentials) -> None:
        self.user = credentials.access_key
        self._keys = Keys(credentials.secret_key.encode())
        self._names = {AK: credentials.access_key}
        if credentials.security_token is not None:
            self._names[TOKEN] = credentials.security_token
        self._session = ""
        self._counter = 0

    def __repr__(self) -> str:
        return f"Signer({self.user!r})"

    def learn(self, answer: Command) -> None:
        """Take the session that an answer gives, if it gives one."""
        session = answer.fields.get(SESSION)
        if session and session != self._session:
            self._session, self._counter = session, 0

    def signed(self, command: Command) -> Command:
        """Return a request with its signature."""
        fields = {name: text for name, text in command.fields.items() if name not in _OWN}
        self._sign(command.code, fields, command.body)
        return Command(
            command.code,
            command.request_id,
            command.flag,
            fields,
            command.remark,
            command.body,
            language=command.language,
            version=command.version,
            serializer=command.serializer,
        )

    def signed_head(self, head: bytes, body: bytes) -> bytes:
        """Return the head of a frame, length and JSON header, with its signature."""
        # hot: 3 us for a send of 256 B, 5 us in a session.
        read = _decode(head[_PREFIX.size :])
        marks = encode(self._sign(read.code, read.extFields, body))
        at = head.index(_FIELDS) + len(_FIELDS)
        size = len(head) - _PREFIX.size + len(marks) - 1  # a comma for two braces
        if size > HEADER_BYTES_MAX or size + len(body) + _PREFIX.size > FRAME_BYTES_MAX:
            raise LocalProtocolError(
                f"a frame of {size + len(body) + _PREFIX.size} bytes is above the limit of "
                f"{FRAME_BYTES_MAX}"
            )
        prefix = _PREFIX.pack(4 + size + len(body), size)
        return b"".join((prefix, head[_PREFIX.size : at], marks[1:-1], b",", head[at:]))

    def signed_frame(self, frame: bytes) -> bytes:
        """Return the whole frame of a request with its signature."""
        _, size = _PREFIX.unpack_from(frame)
        body_at = _PREFIX.size + size
        body = frame[body_at:]
        return self.signed_head(frame[:body_at], body) + body

    def _sign(self, code: int, fields: dict[str, str], body: bytes | memoryview) -> dict[str, str]:
        """Add the fields that sign a request to its fields; return them."""
        marks = self._names.copy()
        if self._session:
            self._counter += 1
            marks[SESSION] = session = self._session
            marks[COUNTER] = str(self._counter)
            fields.update(marks)
            covered = bound_content(session, self._counter, code, fields, len(body))
            fields[BOUND] = marks[BOUND] = self._keys.mark(covered).decode()
        else:
            fields.update(marks)
        fields[SIGNATURE] = marks[SIGNATURE] = self._keys.sign(content(fields, body)).decode()
        return marks


class Answer(Protocol):
    """An answer, typed or not."""

    code: int
    remark: str | None


_ACL_EXCEPTION: Final = re.compile(r"\S*\bAclException: (.*?)(, [\w.$]+\(\S*\))?", re.DOTALL)
_UNSIGNED: Final = re.compile("cannot be null|accesskey is", re.IGNORECASE)
_UNKNOWN: Final = re.compile(
    "signature|cannot be null|is not found|is disabled|authentication|accesskey is|acl config",
    re.IGNORECASE,
)


def explain(answer: Answer, signer: Signer | None) -> bool:
    """Say in a refusal by access control who was refused, and what to do; False for other answers.

    RocketMQ up to 5.3.2 answers SYSTEM_ERROR with the text of a Java exception; such an answer
    becomes NO_PERMISSION, for nothing was done.
    """
    if answer.code == ResponseCode.SYSTEM_ERROR:
        thrown = _ACL_EXCEPTION.fullmatch(answer.remark or "")
        if thrown is None:
            return False
        answer.code, answer.remark = int(ResponseCode.NO_PERMISSION), thrown[1]
    if not is_denial(answer.code, answer.remark):
        return False
    said = (answer.remark or "").rstrip(". ")
    if signer is None:
        if _UNSIGNED.search(said):
            answer.remark = (
                f"{said}; this client has no credentials: give credentials=, or set {ACCESS_KEY} "
                f"and {SECRET_KEY}"
            )
    elif _UNKNOWN.search(said):
        answer.remark = (
            f"{said} (access key {signer.user}); check both keys, and that the server has this "
            "user and has it enabled"
        )
    else:
        answer.remark = (
            f"{said} (access key {signer.user}); whoever administers the cluster can grant it"
        )
    return True
