"""The container image, the compose file and the systemd unit, as far as files can tell."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

from tests.integration.test_flapping_process import first_line, process

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICE = COMPOSE["services"]["inorder"]
UNIT = DEPLOY / "inorder.service"


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile: continued lines joined, comments left out."""
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    text = "\n".join(line for line in lines if not line.startswith("#"))
    found = [line.partition(" ") for line in text.replace("\\\n", " ").splitlines() if line.strip()]
    return [(name, rest.strip()) for name, _, rest in found]


def last(name: str) -> str:
    """Return the last instruction of a name: it counts for the image."""
    return [rest for one, rest in instructions() if one == name][-1]


def started() -> list[str]:
    """Return the command of the image."""
    return [*json.loads(last("ENTRYPOINT")), *json.loads(last("CMD"))]


def healthcheck() -> list[str]:
    """Return the command of the image's health check."""
    return list(json.loads(last("HEALTHCHECK").partition("CMD ")[2]))


def test_the_instructions_are_known_and_each_run_stops_at_its_first_failure() -> None:
    """A typing error makes an instruction that no builder knows."""
    known = {
        "FROM", "RUN", "WORKDIR", "COPY", "ENV", "USER", "VOLUME", "EXPOSE", "STOPSIGNAL",
        "HEALTHCHECK", "ENTRYPOINT", "CMD",
    }  # fmt: skip
    assert {name for name, _ in instructions()} <= known
    assert not [rest for name, rest in instructions() if name == "RUN" and ";" in rest]


def test_both_stages_have_one_pinned_base() -> None:
    """A tag that moves would change Python under the compiled module."""
    bases = [rest.split()[0] for name, rest in instructions() if name == "FROM"]
    assert len(bases) == 2
    assert len(set(bases)) == 1
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-[a-z]+", bases[0])


def test_every_copied_file_is_there_and_reaches_the_builder() -> None:
    """Also what the build of the wheel reads."""
    ignore = (DEPLOY / "Dockerfile.dockerignore").read_text().split()
    let_in = [line[1:] for line in ignore if line.startswith("!")]
    sources = [
        source
        for name, rest in instructions()
        if name == "COPY" and not rest.startswith("--from")
        for source in rest.split()[:-1]
    ]
    assert "src" in sources
    for source in sources:
        assert (ROOT / source).exists(), source
        assert any(fnmatch(source, one) for one in let_in), f"{source} is kept from the builder"
    for needed in ("pyproject.toml", "README.md", "LICENSE", "tools/compile_native.py"):
        assert needed in sources


def test_the_image_runs_as_a_user_without_rights() -> None:
    """By number, so that Kubernetes can see that it is not root."""
    user = last("USER")
    assert re.fullmatch(r"[1-9]\d{3,}:[1-9]\d{3,}", user)
    assert user.partition(":")[0] in (DEPLOY / "Dockerfile").read_text().partition("useradd")[2]
    names = [name for name, _ in instructions()]
    assert names.index("USER") < names.index("ENTRYPOINT")


def test_the_image_holds_no_compiler_and_no_source() -> None:
    """Only the virtual environment goes from the first stage into the second."""
    stages = [index for index, (name, _) in enumerate(instructions()) if name == "FROM"]
    final = instructions()[stages[-1] :]
    assert [rest for name, rest in final if name == "COPY"] == [
        "--from=build /opt/inorder /opt/inorder"
    ]
    assert not [rest for name, rest in final if name == "RUN" and "apt-get" in rest]
    assert "uninstall --yes pip" in (DEPLOY / "Dockerfile").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("of", ["image", "compose", "unit"])
def test_each_command_starts_a_broker_that_its_health_check_finds_well(
    of: str, tmp_path: Path
) -> None:
    """The words as written, with a directory, an address and ports of this machine."""
    words = {
        "image": started(),
        "compose": ["inorder", *SERVICE["command"]],
        "unit": shlex.split(unit()["ExecStart"][0]),
    }[of]
    assert Path(words[0]).name == "inorder"
    swapped = {"/data": str(tmp_path / "d"), "/var/lib/inorder": str(tmp_path / "d")}
    swapped["0.0.0.0"] = "127.0.0.1"
    here = [swapped.get(word, word) for word in words[1:]]
    assert str(tmp_path / "d") in here
    line = ("-m", "inorder.cli.main", *here, "--namesrv-port", "0", "--broker-port", "0")
    with process(*line, cwd=tmp_path) as server:
        namesrv = first_line(server, "ready ")["namesrv"]
        for check in (healthcheck(), SERVICE["healthcheck"]["test"][1:]):
            assert run(check, namesrv).returncode == 0
        server.terminate()
        assert server.wait(40) == 0
    assert run(healthcheck(), namesrv).returncode == 1


def run(check: list[str], namesrv: str) -> subprocess.CompletedProcess[bytes]:
    """Run a health check against the name server of a test."""
    assert check[0] == "inorder"
    return subprocess.run(
        [sys.executable, "-m", "inorder.cli.main", *check[1:]],
        capture_output=True, timeout=60, check=False, env={"INORDER_NAMESRV": namesrv},
    )  # fmt: skip


def test_the_compose_file_builds_what_is_here_and_opens_nothing_to_others() -> None:
    """Ports on loopback, a volume that is declared, a root that cannot be written."""
    context = (DEPLOY / SERVICE["build"]["context"]).resolve()
    assert context == ROOT
    assert (context / SERVICE["build"]["dockerfile"]).is_file()
    assert all(port.startswith("127.0.0.1:") for port in SERVICE["ports"])
    exposed = set(last("EXPOSE").split())
    assert {port.rpartition(":")[2] for port in SERVICE["ports"]} == exposed
    volume, _, place = SERVICE["volumes"][0].partition(":")
    assert volume in COMPOSE["volumes"]
    assert place == last("VOLUME") == SERVICE["command"][SERVICE["command"].index("--data") + 1]
    assert SERVICE["read_only"] is True
    assert SERVICE["cap_drop"] == ["ALL"]


def unit() -> dict[str, list[str]]:
    """Return the settings of the systemd unit."""
    found: dict[str, list[str]] = {}
    for line in UNIT.read_text().splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def test_the_unit_keeps_its_data_in_the_directory_that_systemd_makes() -> None:
    """No user to make, no root to be."""
    settings = unit()
    words = shlex.split(settings["ExecStart"][0])
    assert words[words.index("--data") + 1] == f"/var/lib/{settings['StateDirectory'][0]}"
    for name in ("DynamicUser", "NoNewPrivileges", "PrivateTmp", "MemoryDenyWriteExecute"):
        assert settings[name] == ["yes"]
    assert settings["ProtectSystem"] == ["strict"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    """With a program that is there in the place of ours; nothing is said about it."""
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/opt/inorder/bin/inorder", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(copy)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    said = [line for line in (done.stdout + done.stderr).splitlines() if copy.name in line]
    assert not said, said
    rated = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=25", str(copy)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert rated.returncode == 0, rated.stdout[-300:]
