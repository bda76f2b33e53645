"""Which cluster a command talks to, and where each value came from.

Each value (name servers, TLS, credentials) comes from its option, else from the profile of
`--profile` or INORDER_PROFILE, else from the environment (INORDER_NAMESRV, RocketMQ's NAMESRV_ADDR,
INORDER_TLS…), else from the profile `default`, else it is that of `inorder up`. The profile
`default` counts only where nothing else names a name server: its TLS belongs to its servers.

Profiles are clusters by name, in the user's TOML file:

    [default]
    namesrv = "127.0.0.1:9876"

    [production]
    namesrv = "mq1:9876;mq2:9876"
    tls = true
    tls_ca = "ca.pem"          # relative to the file
    credentials_file = "mq"    # or access_key and secret_key, if only you may read this file

The file is `~/.config/inorder/profiles.toml` (XDG_CONFIG_HOME is honoured); INORDER_PROFILES names
another. Credentials are taken from one place as a whole: nobody signs with the name of one layer
and the secret of another. A secret has no option, for everybody on a machine sees the options of
its processes. How commands behave: decision 30.
"""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from inorder.client.rules.nameservers import LOCAL, VARIABLES
from inorder.credentials import Credentials, require_private
from inorder.errors import ConfigError
from inorder.settings import Value

if TYPE_CHECKING:
    import ssl

Raw = bool | str

# Name of a value -> its type, in a profile and as an option.
FIELDS: Final[Mapping[str, type]] = {
    "namesrv": str,
    "tls": bool,
    "tls_ca": str,
    "tls_cert": str,
    "tls_key": str,
    "tls_insecure": bool,
    "credentials_file": str,
    "access_key": str,
    "secret_key": str,
    "security_token": str,
}
TLS_FILES: Final = ("tls_ca", "tls_cert", "tls_key")
FILE_FIELDS: Final = (*TLS_FILES, "credentials_file")
CREDENTIALS: Final = ("credentials_file", "access_key", "secret_key", "security_token")
SECRETS: Final = ("secret_key", "security_token")
"""Never printed."""
HIDDEN: Final = "(hidden)"


def profiles_file(env: Mapping[str, str]) -> Path:
    """Return the path of the profiles file, which may not exist."""
    given = env.get("INORDER_PROFILES")
    if given:
        return Path(given)
    home = Path(env.get("HOME") or "~").expanduser()
    return Path(env.get("XDG_CONFIG_HOME") or home / ".config") / "inorder" / "profiles.toml"


def read_profiles(env: Mapping[str, str]) -> dict[str, dict[str, Raw]]:
    """Return all profiles; none if there is no file, unless INORDER_PROFILES names it."""
    path = profiles_file(env)
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if env.get("INORDER_PROFILES"):
            raise ConfigError(f"INORDER_PROFILES: there is no {path}") from None
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None
    profiles = {name: _profile(path, name, values) for name, values in found.items()}
    if any(name in values for values in profiles.values() for name in SECRETS):
        require_private(path)
    return profiles


def find_profile(name: str, env: Mapping[str, str]) -> dict[str, Raw]:
    """Return a profile. Raises ConfigError, which lists the known ones."""
    profiles, path = read_profiles(env), profiles_file(env)
    if name in profiles:
        return profiles[name]
    if not profiles:
        raise ConfigError(
            f"profile {name}: there is no {path}; make it with the lines "
            f'[{name}] and namesrv = "host:9876"'
        )
    near = difflib.get_close_matches(name, profiles, n=1)
    known = f"did you mean {near[0]}?" if near else f"it has: {', '.join(sorted(profiles))}"
    raise ConfigError(f"{path} has no [{name}]; {known}")


def _profile(path: Path, name: str, values: Any) -> dict[str, Raw]:
    if not isinstance(values, dict):
        raise ConfigError(
            f"{path}: {name} stands outside of a profile; write [NAME] and below it "
            f"{', '.join(FIELDS)}"
        )
    for field, value in values.items():
        if field not in FIELDS:
            near = difflib.get_close_matches(field, FIELDS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(FIELDS)}"
            raise ConfigError(f"{path}, [{name}]: unknown {field}; {hint}")
        if not isinstance(value, FIELDS[field]):
            kind = "true or false" if FIELDS[field] is bool else "a text in quotes"
            said = "" if field in SECRETS else f", not {value!r}"
            raise ConfigError(f"{path}, [{name}]: {field} must be {kind}{said}")
    return {
        field: str(path.parent / Path(value).expanduser()) if field in FILE_FIELDS else value
        for field, value in values.items()
    }


DEFAULT_PROFILE: Final = "default"
_WORDS: Final = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


@dataclass(frozen=True, slots=True)
class Target:
    """A cluster: values under the names of `FIELDS`, each with its origin."""

    values: Mapping[str, Value] = dataclasses.field(repr=False)

    @property
    def name_servers(self) -> str:
        """Return `host:9876;host2:9876`."""
        return str(self.values["namesrv"].value)

    def context(self) -> ssl.SSLContext | None:
        """Return the TLS context; None: no TLS. Raises ConfigError for a bad file."""
        if not self.values["tls"].value:
            return None
        import ssl  # most clusters do not use it

        from inorder.net.tls import client_context

        ca, certificate, key = (str(self.values[name].value) for name in TLS_FILES)
        for path in filter(None, (ca, certificate, key)):
            if not Path(path).is_file():
                raise ConfigError(f"there is no file {path}; --tls-ca, --tls-cert and --tls-key "
                                  "take PEM files")  # fmt: skip
        try:
            return client_context(
                authorities=ca or None,
                trust_any=bool(self.values["tls_insecure"].value),
                certificate=certificate,
                key=key,
            )
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(filter(None, (ca, certificate, key)))
            raise ConfigError(f"TLS with {files}: {error}; are they PEM, and a pair?") from None

    def credentials(self) -> Credentials | None:
        """Return who signs; None: nobody. Raises ConfigError for a bad file."""
        file, access_key, secret_key, token = (str(self.values[one].value) for one in CREDENTIALS)
        if file and (access_key or secret_key):
            origin = self.values["credentials_file"].origin
            raise ConfigError(f"credentials_file and access_key ({origin}): give one of them")
        if file:
            return Credentials.from_file(file)
        if not access_key and not secret_key:
            return None
        for name in ("access_key", "secret_key"):
            if not self.values[name].value:
                origin = self.values["access_key" if access_key else "secret_key"].origin
                raise ConfigError(f"{name} is missing ({origin}); give both keys, or none")
        return Credentials(access_key, secret_key, token or None)

    def shown(self) -> dict[str, Value]:
        """Return the values to print, without secrets."""
        return {name: shown(name, value) for name, value in self.values.items()}


def shown(name: str, value: Value) -> Value:
    """Return a value to print: a secret is hidden."""
    hidden = name in SECRETS and value.value
    return Value(HIDDEN, value.origin) if hidden else value


def find_target(options: Mapping[str, Raw | None], env: Mapping[str, str]) -> Target:
    """Return the cluster of these options and this environment; `options` may hold `profile`."""
    given = {name: value for name, value in options.items() if value not in (None, "")}
    wanted = given.pop("profile", None) or env.get("INORDER_PROFILE")
    layers = [({name: Value(value, "option") for name, value in given.items()})]
    if wanted:
        values = find_profile(str(wanted), env)
        layers.append(_of_profile(str(wanted), values))
        if "namesrv" not in values and "namesrv" not in given:
            raise ConfigError(f'profile {wanted} has no namesrv; write namesrv = "host:9876"')
    layers.append(_of_environment(env))
    if not any("namesrv" in layer for layer in layers):
        layers.append(_of_profile(DEFAULT_PROFILE, read_profiles(env).get(DEFAULT_PROFILE, {})))
    found = {
        name: next((layer[name] for layer in layers if name in layer), _default(name))
        for name in FIELDS
    }
    who = next((layer for layer in layers if not layer.keys().isdisjoint(CREDENTIALS)), {})
    found |= {name: who.get(name, _default(name)) for name in CREDENTIALS}
    return Target(_implied(found))


def _of_profile(name: str, values: Mapping[str, Raw]) -> dict[str, Value]:
    return {field: Value(value, f"profile {name}") for field, value in values.items()}


def _of_environment(env: Mapping[str, str]) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for variable in reversed(VARIABLES):
        if env.get(variable):
            found["namesrv"] = Value(env[variable], f"environment {variable}")
    for name, kind in FIELDS.items():
        variable = f"INORDER_{name.upper()}"
        text = env.get(variable, "")
        if not text or name == "namesrv":
            continue
        if kind is bool and text.lower() not in _WORDS:
            raise ConfigError(f"{variable}={text}: write true or false")
        value = _WORDS[text.lower()] if kind is bool else text
        found[name] = Value(value, f"environment {variable}")
    return found


def _default(name: str) -> Value:
    return Value(LOCAL if name == "namesrv" else FIELDS[name](), "default")


def _implied(values: dict[str, Value]) -> dict[str, Value]:
    """Turn TLS on if an authority or a certificate is named."""
    if values["tls"].origin == "default":
        for name in ("tls_ca", "tls_cert", "tls_insecure"):
            if values[name].value:
                values["tls"] = Value(True, f"implied by {name}, {values[name].origin}")
                break
    if values["tls_key"].value and not values["tls_cert"].value:
        raise ConfigError("tls_key is of no use without tls_cert; give both")
    return values
