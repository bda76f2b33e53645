"""One remoting frame as a value: a request or an answer, before and after encoding."""

from __future__ import annotations

from typing import Final

from inorder.wire.codes import VERSION, LanguageCode

JSON: Final = 0
BINARY: Final = 1

FLAG_RESPONSE: Final = 1
FLAG_ONEWAY: Final = 2

_PYTHON: Final = int(LanguageCode.PYTHON)


class Command:
    """A request or an answer.

    `fields` is always a dict. `has_fields` tells an empty one (`"extFields":{}`) from none at all;
    fields put in later are written in either case.
    """

    __slots__ = (
        "body",
        "code",
        "fields",
        "flag",
        "has_fields",
        "language",
        "remark",
        "request_id",
        "serializer",
        "version",
    )

    def __init__(  # noqa: PLR0917 - the fields of a header, in its order
        self,
        code: int,
        request_id: int = 0,
        flag: int = 0,
        fields: dict[str, str] | None = None,
        remark: str | None = None,
        body: bytes | memoryview = b"",
        *,
        language: int = _PYTHON,
        version: int = VERSION,
        serializer: int = JSON,
    ) -> None:
        self.code = code
        self.request_id = request_id
        self.flag = flag
        self.has_fields = fields is not None
        self.fields: dict[str, str] = {} if fields is None else fields
        self.remark = remark
        self.body = body
        self.language = language
        self.version = version
        self.serializer = serializer

    @property
    def is_response(self) -> bool:
        """Tell an answer from a request."""
        return bool(self.flag & FLAG_RESPONSE)

    @property
    def is_oneway(self) -> bool:
        """Tell whether no answer may be written."""
        return bool(self.flag & FLAG_ONEWAY)

    @classmethod
    def request(
        cls,
        code: int,
        fields: dict[str, str] | None = None,
        body: bytes | memoryview = b"",
        *,
        request_id: int = 0,
        oneway: bool = False,
        language: int = _PYTHON,
        version: int = VERSION,
        serializer: int = JSON,
    ) -> Command:
        """Make a request."""
        return cls(
            code,
            request_id,
            FLAG_ONEWAY if oneway else 0,
            fields,
            None,
            body,
            language=language,
            version=version,
            serializer=serializer,
        )

    def reply(
        self,
        code: int = 0,
        remark: str | None = None,
        *,
        fields: dict[str, str] | None = None,
        body: bytes | memoryview = b"",
    ) -> Command:
        """Make the answer to this request, in the serializer of the request."""
        return Command(
            code, self.request_id, FLAG_RESPONSE, fields, remark, body, serializer=self.serializer
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Command):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        kind = "answer" if self.is_response else "oneway" if self.is_oneway else "request"
        return (
            f"Command({kind} code={self.code} request_id={self.request_id} fields={self.fields} "
            f"remark={self.remark!r} body={len(self.body)} bytes)"
        )
