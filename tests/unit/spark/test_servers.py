"""Options of TLS: by which names, what they mean together, and what is refused."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trustme

from inorder.cli.pipeline import servers_of
from inorder.cli.target import find_target
from inorder.credentials import Credentials
from inorder.errors import ConfigError
from inorder.spark.cluster import Login, Servers, Tls, common_name, read_tls


def test_names_are_taken_as_they_are_written() -> None:
    """Of the commands, of profiles, and as Spark's options are usually written."""
    for written in ("tls_ca", "tls-ca", "tlsCa", "TLSCA"):
        assert common_name(written) == "tls_ca"
    assert common_name("tlsx") is None


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({}, None),
        ({"tls": "false", "tls_ca": "ca.pem"}, None),
        ({"tls": "True"}, Tls()),
        ({"tls_ca": "ca.pem"}, Tls("ca.pem")),
        ({"tls_insecure": "true"}, Tls(insecure=True)),
        ({"tls_cert": "c", "tls_key": "k"}, Tls(cert="c", key="k")),
    ],
)
def test_who_names_a_file_means_tls(given: dict[str, str], meant: Tls | None) -> None:
    """As with the commands; and what is meant gives the options back."""
    assert read_tls(given) == meant
    if meant is not None:
        assert read_tls(meant.options()) == meant
        servers = Servers("h:1", meant)
        assert servers.options()["namesrv"] == "h:1"
        assert pickle.loads(pickle.dumps(servers)) == servers


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"tls": "maybe"}, "tls: 'maybe' is neither true nor false"),
        ({"tls_insecure": "1"}, "tls_insecure: '1' is neither"),
        ({"tls_key": "k"}, "of no use without tls_cert"),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, str], says: str) -> None:
    """With the name of the option."""
    with pytest.raises(ConfigError, match=says):
        read_tls(given)


def test_a_file_that_is_no_certificate_is_named(tmp_path: Path) -> None:
    """Also one that is not there."""
    (tmp_path / "ca.pem").write_text("no")
    with pytest.raises(ConfigError, match=r"TLS with .*ca\.pem"):
        Tls(ca=str(tmp_path / "ca.pem")).context()
    with pytest.raises(ConfigError, match="there is no file"):
        Tls(ca=str(tmp_path / "none.pem")).context()


def test_commands_pass_their_tls_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By absolute paths: executors have another folder."""
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.chdir(tmp_path)

    def target(**options: Any) -> Any:
        return SimpleNamespace(target=lambda: find_target({"namesrv": "h:1", **options}, {}))

    assert servers_of(target()) == {"namesrv": "h:1"}
    expected = Tls(ca=str(tmp_path / "ca.pem"))
    assert servers_of(target(tls_ca="ca.pem")) == {"namesrv": "h:1", "tls": expected}
    assert servers_of(target(tls_insecure=True))["tls"] == Tls(insecure=True)


SECRET = "tell-nobody"


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment without credentials."""
    for name in ("ACCESS_KEY", "SECRET_KEY", "SECURITY_TOKEN", "CREDENTIALS_FILE"):
        monkeypatch.delenv(f"INORDER_{name}", raising=False)
    return monkeypatch


def key_file(path: Path) -> str:
    path.write_text(f"access_key = alice\nsecret_key = {SECRET}\n")
    path.chmod(0o600)
    return str(path)


def test_a_file_of_credentials_is_named_and_read_by_each_process(
    tmp_path: Path, nobody: pytest.MonkeyPatch
) -> None:
    """Plans and pickles hold its path only."""
    file = key_file(tmp_path / "who")
    for written in ("credentials_file", "credentials.file", "credentialsFile"):
        assert common_name(written) == "credentials_file"
    servers = Servers.of("h:1", credentials_file=file)
    assert servers.options() == {"namesrv": "h:1", "credentials_file": file}
    assert Login.of(servers.options()["credentials_file"]) == servers.login
    assert servers.credentials() == Credentials("alice", SECRET)
    assert SECRET.encode() not in pickle.dumps(servers)
    assert SECRET not in repr(servers)
    nobody.setenv("INORDER_CREDENTIALS_FILE", file)
    assert Servers.of("h:1") == servers


def test_keys_of_the_driver_must_be_those_of_the_executors(nobody: pytest.MonkeyPatch) -> None:
    """An executor without them does not go on unsigned."""
    assert Servers.of("h:1").credentials() is None
    nobody.setenv("INORDER_ACCESS_KEY", "alice")
    nobody.setenv("INORDER_SECRET_KEY", SECRET)
    servers = Servers.of("h:1")
    assert servers.options() == {"namesrv": "h:1"}
    assert servers.credentials() == Credentials("alice", SECRET)
    assert SECRET.encode() not in pickle.dumps(servers)
    nobody.setenv("INORDER_ACCESS_KEY", "bob")
    with pytest.raises(ConfigError, match="the driver signs as alice"):
        servers.credentials()
    nobody.delenv("INORDER_ACCESS_KEY")
    nobody.delenv("INORDER_SECRET_KEY")
    with pytest.raises(ConfigError, match="give credentials_file"):
        servers.credentials()


def test_commands_pass_the_file_on_and_no_keys(tmp_path: Path, nobody: pytest.MonkeyPatch) -> None:
    """Keys of a profile would have to stand in a plan."""
    file = key_file(tmp_path / "who")
    env = {"HOME": str(tmp_path)}
    command: Any = SimpleNamespace(target=lambda: find_target({"credentials_file": file}, env))
    assert servers_of(command)["credentials_file"] == file
    profiles = tmp_path / "p.toml"
    profiles.write_text(f'[a]\nnamesrv = "h:1"\naccess_key = "alice"\nsecret_key = "{SECRET}"\n')
    profiles.chmod(0o600)
    env["INORDER_PROFILES"] = str(profiles)
    command.target = lambda: find_target({"profile": "a"}, env)
    with pytest.raises(ConfigError, match="write the keys into a file"):
        servers_of(command)
    command.target = lambda: find_target(
        {}, {**env, "INORDER_ACCESS_KEY": "alice", "INORDER_SECRET_KEY": SECRET}
    )
    assert "credentials_file" not in servers_of(command)
