"""Profiles: clusters by name, in a TOML file of the person who types.

    [default]
    namesrv = "127.0.0.1:9876"

    [production]
    namesrv = "mq1:9876;mq2:9876"
    tls = true
    tls_ca = "ca.pem"          # relative to the file

The file is `~/.config/inorder/profiles.toml` (XDG_CONFIG_HOME is honoured); INORDER_PROFILES names
another.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from inorder.errors import ConfigError

Raw = bool | str

# Name of a value -> its type, in a profile and as an option.
FIELDS: Final[Mapping[str, type]] = {
    "namesrv": str,
    "tls": bool,
    "tls_ca": str,
    "tls_cert": str,
    "tls_key": str,
    "tls_insecure": bool,
}
FILE_FIELDS: Final = ("tls_ca", "tls_cert", "tls_key")


def profiles_file(env: Mapping[str, str]) -> Path:
    """Return where the profiles stand, whether the file is there or not."""
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
    return {name: _profile(path, name, values) for name, values in found.items()}


def find_profile(name: str, env: Mapping[str, str]) -> dict[str, Raw]:
    """Return a profile. Raises ConfigError that says which there are."""
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
            raise ConfigError(f"{path}, [{name}]: {field} must be {kind}, not {value!r}")
    return {
        field: str(path.parent / Path(value).expanduser()) if field in FILE_FIELDS else value
        for field, value in values.items()
    }
