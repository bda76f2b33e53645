"""`inorder config show`, `inorder version` and how commands fail."""

from __future__ import annotations

import json

import pytest

import inorder
from inorder import accelerated
from inorder.cli.contents import app
from inorder.cli.settings import parse_sets
from inorder.config import BrokerConfig
from inorder.errors import ConfigError
from inorder.settings import catalog
from tests.kit.commands import CliRunner


def run(*words: str, env: dict[str, str] | None = None) -> tuple[int, str, str]:
    """Run the command line; return exit code, stdout and stderr."""
    result = CliRunner().invoke(app, list(words), env=env or {})
    return result.exit_code, result.stdout, result.stderr


def test_config_show_tells_value_and_origin() -> None:
    """JSON has every setting with value and origin."""
    code, out, _ = run(
        "config", "show", "broker", "-o", "json", "--set", "flushDiskType=SYNC_FLUSH",
        env={"INORDER_BROKER__NAME": "from-env"},
    )  # fmt: skip
    settings = json.loads(out)["settings"]
    assert code == 0
    assert set(settings) == set(catalog(BrokerConfig).settings)
    assert settings["store.sync_flush"]["value"] is True
    assert settings["store.sync_flush"]["origin"] == "flag"
    assert settings["name"]["origin"] == "environment INORDER_BROKER__NAME"
    assert settings["port"]["value"] == 10911
    assert settings["port"]["origin"] == "default"


def test_config_show_table_is_for_people() -> None:
    """The table is the default and lists what was ignored below."""
    code, out, _ = run("config", "show", "--set", "haListenPort=1")
    assert code == 0
    assert out.splitlines()[0].split() == ["SETTING", "VALUE", "ORIGIN", "ROCKETMQ"]
    assert out.rstrip().endswith("without a meaning here: haListenPort")


def test_config_show_hides_secrets() -> None:
    """That a secret is set is shown, and where; what it is, never."""
    env = {"INORDER_BROKER__NET__TLS_KEY_PASSWORD": "open sesame"}
    for form in ("json", "table"):
        code, out, err = run("config", "show", "-o", form, env=env)
        assert code == 0
        assert "sesame" not in out + err
        assert "(hidden)" in out
        assert "INORDER_BROKER__NET__TLS_KEY_PASSWORD" in out


def test_config_show_of_the_name_server() -> None:
    """The other server has its own settings."""
    code, out, _ = run("config", "show", "nameserver", "-o", "json")
    assert code == 0
    assert json.loads(out)["settings"]["port"]["value"] == 9876


@pytest.mark.parametrize(
    "words",
    [
        ("config", "show", "--set", "flushDskType=SYNC_FLUSH"),
        ("config", "show", "--set", "nonsense"),
        ("up", "--set", "flushDskType=SYNC_FLUSH"),
        ("up", "--set", "nameserver.prot=1"),
        ("broker", "--port", "70000"),
        ("nameserver", "--config", "/nonexistent/inorder.toml"),
        ("broker", "--namesrv", "nowhere"),
    ],
)
def test_wrong_settings_end_with_one_line_and_code_2(words: tuple[str, ...]) -> None:
    """Nothing starts; one line says what to do; no traceback."""
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert err.startswith("inorder: ")


def test_unknown_option_ends_with_code_2() -> None:
    """The parser's own errors have the same exit code."""
    code, _, err = run("up", "--no-such-option")
    assert code == 2
    assert "--no-such-option" in err


def test_version_in_both_forms() -> None:
    """The version is the package's; whether the compiled module is used is told beside it."""
    table = run("version")[1]
    assert inorder.__version__ in table
    assert accelerated.reason in table
    shown = json.loads(run("version", "-o", "json")[1])
    assert shown["version"] == inorder.__version__
    assert shown["accelerated"] is (accelerated.native is not None)


def test_sets_are_split_at_the_first_equals_sign() -> None:
    """A value may hold an equals sign; a name must be there."""
    assert parse_sets(["a=b=c", " d =1"]) == {"a": "b=c", "d": "1"}
    with pytest.raises(ConfigError):
        parse_sets(["=1"])
