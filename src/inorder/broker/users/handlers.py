"""Requests about users and their rules, as RocketMQ 5.3's tools send them (3001 to 3010).

Only a super user gets here (`access/codes.py`). No answer holds a secret: RocketMQ's holds it in
plain text. The texts of refusals are RocketMQ's where it has one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from inorder.access.records import (
    acl_info,
    changed_user,
    entries_of,
    new_user,
    policy_type,
    subject_name,
    user_info,
)
from inorder.access.rules import parse_resource
from inorder.errors import InvalidParameter, NoPermission, SystemError_
from inorder.wire.requests.users import (
    AclInfo,
    CreateAcl,
    CreateUser,
    DeleteAcl,
    DeleteUser,
    GetAcl,
    GetUser,
    ListAcls,
    ListUsers,
    UpdateAcl,
    UpdateUser,
    decode_acl_request,
    decode_user_request,
    encode_list,
)

if TYPE_CHECKING:
    from typing import Any

    from inorder.access.rules import User
    from inorder.access.service import Accounts
    from inorder.broker.router import Call
    from inorder.wire.header import Command


def _accounts(call: Call[Any]) -> Accounts:
    found = call.broker.accounts
    if found is None:
        raise NoPermission(
            "access is not controlled here, and so there are no users; start the broker with "
            "access.level=log or enforce"
        )
    return found


def _by(call: Call[Any]) -> dict[str, str]:
    user = "" if call.admission is None else call.admission.user.name
    return {"by": user, "peer": call.connection.peer}


def create_user(call: Call[CreateUser]) -> Command:
    """Create a user."""
    accounts, name = _accounts(call), call.request.username
    user = new_user(name, decode_user_request(call.command.body))
    if name in accounts.book.users:
        raise NoPermission("The user is existed")
    accounts.put_user(user, **_by(call))
    return call.reply()


def update_user(call: Call[UpdateUser]) -> Command:
    """Change a user; values that the request leaves out stay."""
    accounts, name = _accounts(call), call.request.username
    if not name.strip():
        raise InvalidParameter("The username is blank")
    before = accounts.book.users.get(name)
    if before is None:
        raise NoPermission("The user is not exist")
    user = changed_user(before, decode_user_request(call.command.body))
    _keep_a_super(accounts, user)
    accounts.put_user(user, **_by(call))
    return call.reply()


def delete_user(call: Call[DeleteUser]) -> Command:
    """Delete a user with all rules; an unknown one is no error."""
    accounts, name = _accounts(call), call.request.username
    if not name.strip():
        raise InvalidParameter("The username is blank")
    before = accounts.book.users.get(name)
    if before is not None:
        _keep_a_super(accounts, replace(before, enabled=False))
    accounts.delete_user(name, **_by(call))
    return call.reply()


def _keep_a_super(accounts: Accounts, changed: User) -> None:
    """Refuse a change after which nobody could change anything."""
    after = accounts.book.with_user(changed, 0)
    if accounts.book.has_super and not after.has_super:
        raise NoPermission("this is the last super user; create another one first")


def get_user(call: Call[GetUser]) -> Command:
    """Return a user, or nothing."""
    if not call.request.username.strip():
        raise InvalidParameter("The username is blank")
    found = _accounts(call).book.users.get(call.request.username)
    return call.reply(body=b"" if found is None else user_info(found).encode())


def list_users(call: Call[ListUsers]) -> Command:
    """Return the users whose name contains a text."""
    wanted = call.request.filter
    users = _accounts(call).book.users
    found = [user_info(users[name]) for name in sorted(users) if wanted in name]
    return call.reply(body=encode_list(found))


def put_acl(call: Call[CreateAcl] | Call[UpdateAcl]) -> Command:
    """Add rules, or replace those for the same resources; the subject of the body counts."""
    accounts = _accounts(call)
    if not call.command.body:
        raise SystemError_("the body is empty")
    info = decode_acl_request(call.command.body)
    name = subject_name(info.subject or call.request.subject)
    entries = entries_of(info)
    if not entries:
        raise NoPermission("The policies is empty.")
    accounts.put_entries(name, entries, **_by(call))
    return call.reply()


def delete_acl(call: Call[DeleteAcl]) -> Command:
    """Delete the rule for a resource, or all rules of a subject."""
    accounts, request = _accounts(call), call.request
    name = subject_name(request.subject)
    resource = parse_resource(request.resource) if request.resource.strip() else None
    accounts.delete_entries(name, resource, policy_type(request.policy_type), **_by(call))
    return call.reply()


def get_acl(call: Call[GetAcl]) -> Command:
    """Return the rules of a subject, or nothing."""
    name = subject_name(call.request.subject)
    found = acl_info(name, _accounts(call).book.entries.get(name, ()))
    return call.reply(body=b"" if found is None else found.encode())


def list_acls(call: Call[ListAcls]) -> Command:
    """Return the rules of subjects and for resources that contain a text."""
    request, entries = call.request, _accounts(call).book.entries
    found: list[AclInfo] = []
    for name in sorted(entries):
        if request.subject_filter in f"User:{name}":
            info = acl_info(name, entries[name], request.resource_filter)
            found += [] if info is None else [info]
    return call.reply(body=encode_list(found))
