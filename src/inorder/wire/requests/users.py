"""Users and what they may do, as RocketMQ 5.3's tools ask for them (3001 to 3010).

    UserInfo   username, password (in requests alone), userType Super or Normal, userStatus
    AclInfo    subject `User:name`; policies of a type; entries with resource, actions, sourceIps
               and decision

inorder adds `sessionRequired` to a user. An absent value of a change keeps what was there. The
bodies are read as fastjson would; what the words mean is decided in `access/records.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import msgspec
from msgspec.json import encode as _encode

from inorder.errors import RemoteProtocolError
from inorder.wire import shapes
from inorder.wire.codes import RequestCode
from inorder.wire.extensions import ExtensionCode
from inorder.wire.fastjson import REQUEST_ITEMS_MAX, SLOW_ITEMS_MAX, TABLE_ITEMS_MAX, loads
from inorder.wire.replies import EMPTY, body_as

LISTED_MAX: Final = 10_000
"""Users or policies of one answer, and entries of one request."""


@dataclass(frozen=True, slots=True)
class UserInfo:
    """A user as a tool sees it; None: not said."""

    name: str = ""
    password: str | None = field(default=None, repr=False)
    type: str | None = None
    status: str | None = None
    session_required: bool | None = None

    def to_json(self) -> dict[str, Any]:
        """Return fastjson's UserInfo; what is not said is left out."""
        found = {
            "password": self.password,
            "sessionRequired": self.session_required,
            "userStatus": self.status,
            "userType": self.type,
            "username": self.name,
        }
        return {name: value for name, value in found.items() if value is not None}

    @classmethod
    def from_json(cls, value: dict[Any, Any]) -> UserInfo:
        """Read a UserInfo."""
        return cls(
            shapes.text(value, "username", ""),
            _optional(value, "password"),
            _optional(value, "userType"),
            _optional(value, "userStatus"),
            None
            if value.get("sessionRequired") is None
            else shapes.boolean(value, "sessionRequired", False),
        )

    def encode(self) -> bytes:
        """Return the JSON text."""
        return _encode(self.to_json())


@dataclass(frozen=True, slots=True)
class EntryInfo:
    """One rule as a tool sees it."""

    resource: str
    actions: tuple[str, ...] = ()
    decision: str = ""
    sources: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return fastjson's PolicyEntryInfo."""
        return {
            "actions": list(self.actions),
            "decision": self.decision,
            "resource": self.resource,
            "sourceIps": list(self.sources),
        }

    @classmethod
    def from_json(cls, value: dict[Any, Any]) -> EntryInfo:
        """Read a PolicyEntryInfo."""
        return cls(
            shapes.text(value, "resource", ""),
            tuple(shapes.texts(value, "actions")),
            shapes.text(value, "decision", ""),
            tuple(shapes.texts(value, "sourceIps")),
        )


@dataclass(frozen=True, slots=True)
class PolicyInfo:
    """The rules of one type."""

    type: str
    entries: tuple[EntryInfo, ...] = ()


@dataclass(frozen=True, slots=True)
class AclInfo:
    """All that a subject may do."""

    subject: str = ""
    policies: tuple[PolicyInfo, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return fastjson's AclInfo."""
        return {
            "policies": [
                {"entries": [entry.to_json() for entry in one.entries], "policyType": one.type}
                for one in self.policies
            ],
            "subject": self.subject,
        }

    @classmethod
    def from_json(cls, value: dict[Any, Any]) -> AclInfo:
        """Read an AclInfo."""
        policies = []
        count = 0
        for one in shapes.objects(value, "policies"):
            entries = shapes.objects(one, "entries")
            count += len(entries)
            if count > LISTED_MAX:
                raise RemoteProtocolError(f"more than {LISTED_MAX} entries")
            policies.append(
                PolicyInfo(
                    shapes.text(one, "policyType", "Custom"),
                    tuple(map(EntryInfo.from_json, entries)),
                )
            )
        return cls(shapes.text(value, "subject", ""), tuple(policies))

    def encode(self) -> bytes:
        """Return the JSON text."""
        return _encode(self.to_json())


def _optional(value: dict[Any, Any], key: str) -> str | None:
    found = value.get(key)
    return None if found is None else shapes.as_text(found, key)


def _object(data: bytes | memoryview, what: str) -> dict[Any, Any]:
    return shapes.as_object(
        loads(data, items_max=REQUEST_ITEMS_MAX, slow_items_max=SLOW_ITEMS_MAX), what
    )


@shapes.request_body
def decode_user_request(data: bytes | memoryview) -> UserInfo:
    """Read the user of a request. Raises SystemError_."""
    return UserInfo.from_json(_object(data, "user"))


@shapes.request_body
def decode_acl_request(data: bytes | memoryview) -> AclInfo:
    """Read the rules of a request. Raises SystemError_."""
    return AclInfo.from_json(_object(data, "acl"))


def decode_user(data: bytes | memoryview) -> UserInfo | None:
    """Read the answer about one user; None: there is none."""
    return UserInfo.from_json(_object(data, "user")) if len(data) else None


def decode_users(data: bytes | memoryview) -> list[UserInfo]:
    """Read a list of users."""
    if not len(data):
        return []
    found = shapes.as_list(loads(data, items_max=TABLE_ITEMS_MAX), "users")
    return [UserInfo.from_json(shapes.as_object(one, "user")) for one in found]


def decode_acl(data: bytes | memoryview) -> AclInfo | None:
    """Read the answer about one subject; None: it has no rules."""
    return AclInfo.from_json(_object(data, "acl")) if len(data) else None


def decode_acls(data: bytes | memoryview) -> list[AclInfo]:
    """Read a list of rules by subject."""
    if not len(data):
        return []
    found = shapes.as_list(loads(data, items_max=TABLE_ITEMS_MAX), "acls")
    return [AclInfo.from_json(shapes.as_object(one, "acl")) for one in found]


def encode_list(found: list[UserInfo] | list[AclInfo]) -> bytes:
    """Return the body of an answer that lists; empty if there is nothing, as in RocketMQ."""
    return _encode([one.to_json() for one in found]) if found else b""


class CreateUser(msgspec.Struct, frozen=True):
    """Create a user; the body is a UserInfo."""

    CODE: ClassVar = RequestCode.AUTH_CREATE_USER
    REPLY = EMPTY

    username: str = ""


class UpdateUser(msgspec.Struct, frozen=True):
    """Change a user; the body is a UserInfo, absent values stay."""

    CODE: ClassVar = RequestCode.AUTH_UPDATE_USER
    REPLY = EMPTY

    username: str = ""


class DeleteUser(msgspec.Struct, frozen=True):
    """Delete a user with all rules."""

    CODE: ClassVar = RequestCode.AUTH_DELETE_USER
    REPLY = EMPTY

    username: str = ""


class GetUser(msgspec.Struct, frozen=True):
    """Ask for a user."""

    CODE: ClassVar = RequestCode.AUTH_GET_USER
    REPLY = body_as(decode_user)

    username: str = ""


class ListUsers(msgspec.Struct, frozen=True):
    """List the users whose name contains a text."""

    CODE: ClassVar = RequestCode.AUTH_LIST_USER
    REPLY = body_as(decode_users)

    filter: str = ""


class CreateAcl(msgspec.Struct, frozen=True):
    """Add rules; the body is an AclInfo, whose subject counts."""

    CODE: ClassVar = RequestCode.AUTH_CREATE_ACL
    REPLY = EMPTY

    subject: str = ""


class UpdateAcl(msgspec.Struct, frozen=True):
    """Add rules or replace those for the same resources; the body is an AclInfo."""

    CODE: ClassVar = RequestCode.AUTH_UPDATE_ACL
    REPLY = EMPTY

    subject: str = ""


class DeleteAcl(msgspec.Struct, frozen=True):
    """Delete the rule for a resource, or all rules of a subject."""

    CODE: ClassVar = RequestCode.AUTH_DELETE_ACL
    REPLY = EMPTY

    subject: str = ""
    policy_type: str = ""
    resource: str = ""


class GetAcl(msgspec.Struct, frozen=True):
    """Ask for the rules of a subject."""

    CODE: ClassVar = RequestCode.AUTH_GET_ACL
    REPLY = body_as(decode_acl)

    subject: str = ""


class ListAcls(msgspec.Struct, frozen=True):
    """List the rules of subjects and for resources that contain a text."""

    CODE: ClassVar = RequestCode.AUTH_LIST_ACL
    REPLY = body_as(decode_acls)

    subject_filter: str = ""
    resource_filter: str = ""


class PutAccess(msgspec.Struct, frozen=True):
    """Give a name server the broker's users and rules; it takes them if they are newer."""

    CODE: ClassVar = ExtensionCode.PUT_ACCESS
    REPLY = EMPTY
