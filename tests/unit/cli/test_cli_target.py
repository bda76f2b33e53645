"""Which cluster a command means: options, profiles, environment, and the origin of each value."""

from __future__ import annotations

import json
import ssl
from pathlib import Path
from typing import Any

import pytest

from inorder.cli.contents import app
from inorder.cli.target import Target, find_target
from inorder.client.rules.nameservers import LOCAL
from inorder.errors import ConfigError
from tests.kit.commands import CliRunner

PROFILES = """
[default]
namesrv = "d:1"
tls = true

[prod]
namesrv = "p:1;q:1"
tls_ca = "ca.pem"
tls_insecure = false

[plain]
tls = false
"""


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """An environment whose home holds profiles."""
    file = tmp_path / ".config" / "inorder" / "profiles.toml"
    file.parent.mkdir(parents=True)
    file.write_text(PROFILES)
    return {"HOME": str(tmp_path)}


def meant(env: dict[str, str], **options: Any) -> tuple[object, str]:
    """Return the name servers and who said so."""
    found = find_target(options, env).values["namesrv"]
    return found.value, found.origin


def test_the_first_that_names_a_cluster_counts(env: dict[str, str], tmp_path: Path) -> None:
    """Option, profile, environment, default profile, this machine."""
    nobody = {"HOME": str(tmp_path / "nobody")}
    assert meant(nobody) == (LOCAL, "default")
    assert meant(env) == ("d:1", "profile default")
    old = {**env, "NAMESRV_ADDR": "n:1"}
    assert meant(old) == ("n:1", "environment NAMESRV_ADDR")
    both = {**old, "INORDER_NAMESRV": "i:1"}
    assert meant(both) == ("i:1", "environment INORDER_NAMESRV")
    assert meant({**both, "INORDER_PROFILE": "prod"}) == ("p:1;q:1", "profile prod")
    assert meant(both, profile="prod") == ("p:1;q:1", "profile prod")
    assert meant(both, profile="prod", namesrv="o:1") == ("o:1", "option")
    elsewhere = {**nobody, "XDG_CONFIG_HOME": str(tmp_path / ".config")}
    assert meant(elsewhere) == ("d:1", "profile default")


def test_the_tls_of_the_default_profile_belongs_to_its_servers(env: dict[str, str]) -> None:
    """Whoever names other servers does not get its encryption by accident."""
    assert find_target({}, env).values["tls"].value is True
    other = find_target({"namesrv": "o:1"}, env).values["tls"]
    assert (other.value, other.origin) == (False, "default")


def test_tls_is_implied_and_can_be_refused(env: dict[str, str]) -> None:
    """Naming an authority means TLS; --no-tls means none; files are relative to the profiles."""
    values = find_target({"profile": "prod"}, env).values
    assert values["tls"].origin == "implied by tls_ca, profile prod"
    assert values["tls_ca"].value == str(Path(env["HOME"]) / ".config" / "inorder" / "ca.pem")
    assert find_target({"profile": "prod", "tls": False}, env).context() is None
    shaky = find_target({"namesrv": "o:1"}, {**env, "INORDER_TLS_INSECURE": "true"})
    context = shaky.context()
    assert context is not None
    assert context.verify_mode is ssl.CERT_NONE


@pytest.mark.parametrize(
    ("options", "more", "says"),
    [
        ({"profile": "prdo"}, {}, r"has no \[prdo\]; did you mean prod\?"),
        ({"profile": "xyz"}, {}, r"has no \[xyz\]; it has: default, plain, prod"),
        ({"profile": "plain"}, {}, "profile plain has no namesrv"),
        ({"profile": "x"}, {"HOME": "/nowhere"}, "there is no .*profiles.toml; make it"),
        ({}, {"INORDER_PROFILES": "/nowhere/p"}, "INORDER_PROFILES: there is no /nowhere/p"),
        ({}, {"INORDER_TLS": "perhaps"}, "INORDER_TLS=perhaps: write true or false"),
        ({"tls_key": "k"}, {}, "tls_key is of no use without tls_cert"),
    ],
)
def test_what_is_wrong_is_told(
    env: dict[str, str], options: dict[str, Any], more: dict[str, str], says: str
) -> None:
    """The name, and what there is instead."""
    with pytest.raises(ConfigError, match=says):
        find_target(options, {**env, **more})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[", "is not TOML"),
        ('namesrv = "x:1"', "namesrv stands outside of a profile"),
        ('[a]\nnamesvr = "x:1"', "unknown namesvr; did you mean namesrv?"),
        ("[a]\nzzz = 1", "unknown zzz; known are namesrv, tls"),
        ("[a]\ntls = 1", "tls must be true or false, not 1"),
        ("[a]\nnamesrv = 9876", "namesrv must be a text in quotes"),
    ],
)
def test_a_bad_profiles_file_is_told(tmp_path: Path, text: str, says: str) -> None:
    """With the file, the profile and the field."""
    file = tmp_path / "p.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        find_target({}, {"INORDER_PROFILES": str(file)})
    assert str(file) in str(caught.value)
    assert says in str(caught.value)


def test_a_bad_certificate_is_told(tmp_path: Path) -> None:
    """A file that is not there, and one that is no PEM."""
    with pytest.raises(ConfigError, match=r"there is no file nowhere\.pem"):
        target(tls_ca="nowhere.pem").context()
    bad = tmp_path / "bad.pem"
    bad.write_text("x")
    with pytest.raises(ConfigError, match="are they PEM, and a pair"):
        target(tls_cert=str(bad), tls_key=str(bad)).context()


def target(**options: str) -> Target:
    """Return what options alone mean."""
    return find_target(options, {"HOME": "/nowhere"})


def test_config_shows_the_cluster_with_origins(env: dict[str, str]) -> None:
    """`config show client` and `config profiles` say what is in force and why."""
    env = {**env, "XDG_CONFIG_HOME": "", "INORDER_NAMESRV": "", "NAMESRV_ADDR": ""}
    env |= {"INORDER_PROFILE": "prod", "INORDER_CLIENT__SEND_TIMEOUT_MS": "7"}
    runner = CliRunner(env=env)
    shown = json.loads(runner.invoke(app, ["config", "show", "client", "-o", "json"]).stdout)
    assert shown["settings"]["namesrv"] == {
        "value": "p:1;q:1", "origin": "profile prod", "rocketmq": "namesrvAddr", "doc": None,
    }  # fmt: skip
    assert shown["settings"]["send_timeout_ms"]["origin"].startswith("environment INORDER_CLIENT")
    assert "profile prod" in runner.invoke(app, ["config", "show", "client"]).stdout
    listed = json.loads(runner.invoke(app, ["config", "profiles", "-o", "json"]).stdout)
    assert [one["profile"] for one in listed["profiles"] if one["in_force"]] == ["prod"]
    text = runner.invoke(app, ["config", "profiles"]).stdout
    assert "p:1;q:1" in text
    nobody = CliRunner(env={**env, "HOME": "/nowhere"})
    assert "no profiles; write" in nobody.invoke(app, ["config", "profiles"]).stdout


SECRET = "tell-nobody"


def with_keys(env: dict[str, str], mode: int = 0o600) -> dict[str, str]:
    """Add a profile with keys, and one with a file, to the profiles."""
    file = Path(env["HOME"]) / ".config" / "inorder" / "profiles.toml"
    file.write_text(
        f'{PROFILES}\n[keys]\nnamesrv = "k:1"\naccess_key = "alice"\nsecret_key = "{SECRET}"\n'
        '\n[file]\nnamesrv = "f:1"\ncredentials_file = "who"\n'
    )
    file.chmod(mode)
    who = file.parent / "who"
    who.write_text(f"access_key = bob\nsecret_key = {SECRET}\n")
    who.chmod(0o600)
    return env


def test_credentials_come_from_one_layer(env: dict[str, str], tmp_path: Path) -> None:
    """Option, profile, environment: the first that names any of them gives all of them."""
    env = with_keys(env)
    other = tmp_path / "other"
    other.write_text(f"access_key = carol\nsecret_key = {SECRET}\n")
    other.chmod(0o600)
    keys = {**env, "INORDER_ACCESS_KEY": "dave", "INORDER_SECRET_KEY": SECRET}

    def who(env: dict[str, str], **options: str) -> str | None:
        found = find_target(options, env).credentials()
        return None if found is None else found.access_key

    assert who(env) is None
    assert who(env, profile="keys") == "alice"
    assert who(env, profile="file") == "bob"
    assert who(env, profile="keys", credentials_file=str(other)) == "carol"
    assert who(keys) == "dave"
    assert who(keys, profile="prod") == "dave"
    assert who(keys, profile="keys") == "alice"
    assert who({**env, "INORDER_CREDENTIALS_FILE": str(other)}) == "carol"


def test_half_credentials_are_told(env: dict[str, str]) -> None:
    """A command never signs with a name of one layer and a secret of another."""
    env = {**with_keys(env), "INORDER_ACCESS_KEY": "dave"}
    with pytest.raises(ConfigError, match=r"secret_key is missing \(environment INORDER_ACCESS"):
        find_target({}, env).credentials()
    env["INORDER_CREDENTIALS_FILE"] = "x"
    with pytest.raises(ConfigError, match="give one of them"):
        find_target({}, env).credentials()


def test_profiles_with_secrets_are_private(env: dict[str, str]) -> None:
    """A file that others may read is refused, whichever profile is asked for."""
    with pytest.raises(ConfigError, match="chmod 600"):
        find_target({"profile": "prod"}, with_keys(env, 0o644))


def test_secrets_are_not_printed(env: dict[str, str]) -> None:
    """Neither by `config show`, nor by `config profiles`, nor in the repr of a cluster."""
    env = with_keys(env) | {"XDG_CONFIG_HOME": "", "INORDER_PROFILE": "keys"}
    runner = CliRunner(env=env)
    for verb in (["show", "client"], ["profiles"]):
        for form in ([], ["-o", "json"]):
            done = runner.invoke(app, ["config", *verb, *form])
            assert done.exit_code == 0, done.output
            assert "alice" in done.stdout
            assert SECRET not in done.output
    shown = json.loads(runner.invoke(app, ["config", "show", "client", "-o", "json"]).stdout)
    assert shown["settings"]["secret_key"]["value"] == "(hidden)"
    assert SECRET not in repr(find_target({"profile": "keys"}, env))


def test_a_secret_of_the_wrong_type_is_told_without_it(tmp_path: Path) -> None:
    """The error names the field only."""
    file = tmp_path / "p.toml"
    file.write_text("[a]\nsecret_key = 12345678")
    with pytest.raises(ConfigError, match=r"secret_key must be a text in quotes$"):
        find_target({}, {"INORDER_PROFILES": str(file)})


def test_no_secret_is_an_option() -> None:
    """Everybody on a machine sees the options of its processes."""
    shown = CliRunner().invoke(app, ["topic", "list", "--help"]).stdout
    assert "--credentials-file" in shown
    assert "--secret" not in shown
    assert "--access-key" not in shown
