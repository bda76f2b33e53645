"""Users and what they may do: on every broker; name servers learn it from their brokers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from inorder.client.access import Access
from inorder.client.admin.cluster import Cluster
from inorder.errors import NotFound
from inorder.wire.requests.users import (
    AclInfo,
    CreateUser,
    DeleteAcl,
    DeleteUser,
    EntryInfo,
    ListAcls,
    ListUsers,
    PolicyInfo,
    UpdateAcl,
    UpdateUser,
    UserInfo,
)


@dataclass(frozen=True, slots=True)
class UserView:
    """A user, and the brokers that know it so."""

    name: str
    is_super: bool
    enabled: bool
    session_required: bool
    brokers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RuleView:
    """One rule of a user, and the brokers that have it."""

    user: str
    resource: str
    actions: tuple[str, ...]
    allow: bool
    sources: tuple[str, ...]
    default: bool
    brokers: tuple[str, ...]


Views = list[UserView]
Rules = list[RuleView]


class Users:
    """The users of a cluster. No answer holds a secret."""

    def __init__(self, access: Access, cluster: Cluster) -> None:
        self._access = access
        self._cluster = cluster

    async def list(self, containing: str = "") -> Views:
        """Return the users whose name contains a text, sorted; brokers may differ."""
        found: dict[UserView, list[str]] = {}
        answers = await self._cluster.each(lambda api: api.ask(ListUsers(containing)))
        for node, users in answers.items():
            for one in users:
                found.setdefault(_view(one), []).append(node.name)
        return sorted(
            (
                UserView(one.name, one.is_super, one.enabled, one.session_required, tuple(brokers))
                for one, brokers in found.items()
            ),
            key=lambda one: (one.name, one.brokers),
        )

    async def get(self, name: str) -> Views:
        """Return a user, as often as brokers differ. Raises NotFound."""
        found = [one for one in await self.list(name) if one.name == name]
        if not found:
            raise NotFound(f"no broker knows user {name}")
        return found

    async def create(
        self,
        name: str,
        secret: str,
        *,
        is_super: bool = False,
        enabled: bool = True,
        session_required: bool = False,
    ) -> None:
        """Create a user on every broker."""
        info = UserInfo(name, secret, _type(is_super), _status(enabled), session_required or None)
        body = info.encode()
        await self._cluster.each(lambda api: api.ask(CreateUser(name), body))

    async def update(
        self,
        name: str,
        *,
        secret: str | None = None,
        is_super: bool | None = None,
        enabled: bool | None = None,
        session_required: bool | None = None,
    ) -> None:
        """Change a user on every broker; what is not given stays."""
        info = UserInfo(
            name,
            secret,
            None if is_super is None else _type(is_super),
            None if enabled is None else _status(enabled),
            session_required,
        )
        body = info.encode()
        await self._cluster.each(lambda api: api.ask(UpdateUser(name), body))

    async def delete(self, name: str) -> None:
        """Delete a user with all rules on every broker. Raises NotFound."""
        await self.get(name)
        await self._cluster.each(lambda api: api.ask(DeleteUser(name)))


class Acls:
    """What users may do: rules by user and resource."""

    def __init__(self, access: Access, cluster: Cluster) -> None:
        self._access = access
        self._cluster = cluster

    async def list(self, user: str = "", resource: str = "") -> Rules:
        """Return the rules of users and for resources that contain a text."""
        found: dict[RuleView, list[str]] = {}
        answers = await self._cluster.each(lambda api: api.ask(ListAcls(user, resource)))
        for node, acls in answers.items():
            for acl in acls:
                for one in _rules(acl):
                    found.setdefault(one, []).append(node.name)
        return sorted(
            (
                RuleView(
                    one.user, one.resource, one.actions, one.allow, one.sources, one.default,
                    tuple(brokers),
                )
                for one, brokers in found.items()
            ),
            key=lambda one: (one.user, one.default, one.resource, one.brokers),
        )  # fmt: skip

    async def get(self, user: str) -> Rules:
        """Return the rules of a user."""
        return [one for one in await self.list(f"User:{user}") if one.user == user]

    async def set(
        self,
        user: str,
        resources: Iterable[str],
        actions: Iterable[str],
        *,
        allow: bool = True,
        sources: Iterable[str] = (),
        default: bool = False,
    ) -> None:
        """Add rules on every broker, or replace those for the same resources."""
        decision = "Allow" if allow else "Deny"
        done, addresses = tuple(actions), tuple(sources)
        entries = tuple(EntryInfo(one, done, decision, addresses) for one in resources)
        subject = f"User:{user}"
        policy = PolicyInfo("Default" if default else "Custom", entries)
        body = AclInfo(subject, (policy,)).encode()
        await self._cluster.each(lambda api: api.ask(UpdateAcl(subject), body))

    async def delete(
        self, user: str, resource: str | None = None, *, default: bool = False
    ) -> None:
        """Delete the rule for a resource, or all rules of a user, on every broker."""
        request = DeleteAcl(f"User:{user}", "Default" if default else "Custom", resource or "")
        await self._cluster.each(lambda api: api.ask(request))


def _view(one: UserInfo) -> UserView:
    return UserView(
        one.name,
        (one.type or "").lower() == "super",
        (one.status or "").lower() != "disable",
        bool(one.session_required),
        (),
    )


def _rules(acl: AclInfo) -> Iterable[RuleView]:
    for policy in acl.policies:
        for one in policy.entries:
            yield RuleView(
                acl.subject.partition(":")[2],
                one.resource,
                one.actions,
                one.decision.lower() == "allow",
                one.sources,
                policy.type.lower() == "default",
                (),
            )


def _type(is_super: bool) -> str:
    return "Super" if is_super else "Normal"


def _status(enabled: bool) -> str:
    return "enable" if enabled else "disable"
