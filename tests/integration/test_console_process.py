"""`inorder console` and `inorder up --console` as processes: ready lines, refusals, the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.integration.test_serve_process import TIMEOUT_S, accepts, inorder, ready, stop
from tests.kit.certificates import Certificates

pytestmark = pytest.mark.slow

PORTS = ("--namesrv-port", "0", "--broker-port", "0", "--console-port", "0")


def get(url: str) -> tuple[int, str]:
    """Ask for a page."""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_up_starts_and_stops_a_console(tmp_path: Path, number: int) -> None:
    """The ready line names it, the log has its link, and it is gone with the broker."""
    with inorder("up", *PORTS, "--data", str(tmp_path / "d"), "--console", cwd=tmp_path) as process:
        said = ready(process)
        address = said["console"].removeprefix("http://")
        assert accepts(address)
        status, page = get(said["console"])
        assert status == 200
        assert said["namesrv"] in page
        code, _, err = stop(process, number)
        assert code == 0
        assert "/enter?token=" in err
        assert not accepts(address)


def test_without_the_option_there_is_none(tmp_path: Path) -> None:
    """A plain `inorder up` says nothing of a console."""
    with inorder("up", *PORTS[:4], "--data", str(tmp_path / "d"), cwd=tmp_path) as process:
        assert "console" not in ready(process)
        assert stop(process)[0] == 0


def test_several_brokers_have_one_console(tmp_path: Path) -> None:
    """`--brokers 2 --console`: both brokers are rows of its page."""
    words = ("up", *PORTS, "--brokers", "2", "--data", str(tmp_path / "d"), "--console")
    with inorder(*words, cwd=tmp_path) as process:
        url = ready(process)["console"]
        _, page = get(f"{url}/brokers")
        assert "broker-a" in page
        assert "broker-b" in page
        assert stop(process)[0] == 0


@pytest.mark.parametrize("auth", ["none", "require"])
def test_the_console_of_servers_that_enforce_tls_reaches_them(tmp_path: Path, auth: str) -> None:
    """It is handed the authority of the servers, and their certificate where they ask for one."""
    files = Certificates(tmp_path, "127.0.0.1")
    settings = {
        "tls_mode": "enforcing", "tls_certificate": files.cert, "tls_key": files.key,
        "tls_client_trust": files.ca, "tls_client_auth": auth, "tls_trust": files.ca,
    }  # fmt: skip
    sets = [word for name, value in settings.items() for word in ("--set", f"net.{name}={value}")]
    words = ("up", *PORTS, "--data", str(tmp_path / "d"), "--console", *sets)
    with inorder(*words, cwd=tmp_path) as process:
        url = ready(process)["console"]
        status, page = get(f"{url}/topics")
        assert (status, "The cluster did not answer" in page) == (200, False)
        _, page = get(f"{url}/brokers")
        assert "broker-a" in page
        assert stop(process)[0] == 0


def test_a_console_without_a_cluster_says_so(tmp_path: Path) -> None:
    """It starts, prints a link, and its pages say what does not answer and what to do."""
    words = ("console", "--namesrv", "127.0.0.1:1", "--port", "0")
    with inorder(*words, cwd=tmp_path) as process:
        url = ready(process)["console"]
        assert process.stdout is not None
        assert f"{url}/enter?token=" in process.stdout.readline()
        assert get(url)[0] == 200
        status, page = get(f"{url}/topics")
        assert status == 502
        assert "The cluster did not answer" in page
        assert stop(process)[0] == 0


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command that ends by itself."""
    return subprocess.run(
        [sys.executable, "-m", "inorder.cli.main", "console", "--port", "0", *words],
        env={**os.environ, **environment}, capture_output=True, text=True, timeout=TIMEOUT_S,
        check=False,
    )  # fmt: skip


def test_other_addresses_want_a_decision() -> None:
    """Without --insecure or a token of one's own it does not listen beyond loopback."""
    found = run("--host", "0.0.0.0")
    assert found.returncode == 2
    assert "is not loopback" in found.stderr
    short = run(INORDER_CONSOLE_TOKEN="short")
    assert short.returncode == 2
    assert "give 16 at least" in short.stderr


def test_a_given_token_works_and_credentials_of_the_process_do_not(tmp_path: Path) -> None:
    """No link is printed; the environment's credentials are named and left aside."""
    process = subprocess.Popen(
        [sys.executable, "-m", "inorder.cli.main", "console", "--namesrv", "127.0.0.1:1",
         "--port", "0", "-o", "json"],
        cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env={**os.environ, "INORDER_CONSOLE_TOKEN": "a-token-of-our-own",
                        "INORDER_ACCESS_KEY": "root", "INORDER_SECRET_KEY": "secret-of-root"},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        assert said["enter"] == ""
        code, _, err = stop(process)
        assert code == 0
        assert "INORDER_SECRET_KEY is not used" in err
        assert "a-token-of-our-own" not in err
        assert "secret-of-root" not in err
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
