"""What the brokers of `inorder up --brokers N` are derived from, and the command line of each.

The processes themselves are in `supervising.py`. What is derived, and why: decision 47.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase
from typing import TYPE_CHECKING, Final

from inorder.errors import ConfigError

if TYPE_CHECKING:
    from inorder.config import BrokerConfig
    from inorder.disk import Files

BROKERS_MAX: Final = 64
PORTS_APART: Final = 10
"""RocketMQ clients may use the port two below a broker's as well: it must not be another's."""
FIRST_SUFFIX: Final = "-a"


@dataclass(frozen=True, slots=True)
class BrokerPlan:
    """What tells one broker from the others."""

    name: str
    port: int
    data: str
    admin_port: int = -1


def plan_brokers(config: BrokerConfig, count: int, namesrv_port: int) -> list[BrokerPlan]:
    """Return the brokers: the first as without `--brokers`, the others derived from it.

    So a directory that `inorder up` has filled goes on as that of the first broker.
    """
    first = BrokerPlan(config.name, config.port, config.data, config.admin_port)
    if count == 1:
        return [first]
    if not config.name.endswith(FIRST_SUFFIX):
        raise ConfigError(
            f"broker name {config.name} does not end with {FIRST_SUFFIX}, and --brokers {count} "
            f"counts on from there; name the first broker {config.name}{FIRST_SUFFIX}"
        )
    plans = [first]
    for number in range(1, count):
        name = _name_of(config, number)
        port = config.port and config.port + PORTS_APART * number
        admin = config.admin_port  # of one machine, so each has its own; -1 and 0 mean the same
        admin += PORTS_APART * number if admin > 0 else 0
        plans.append(BrokerPlan(name, port, str(Path(config.data) / name), admin))
    if plans[-1].port > 65_535:
        raise ConfigError(
            f"--brokers {count} from port {config.port} on would need port {plans[-1].port}; "
            f"ports are {PORTS_APART} apart; choose a lower --broker-port, or 0"
        )
    if namesrv_port and namesrv_port in [plan.port for plan in plans]:
        raise ConfigError(
            f"port {namesrv_port} is the name server's and, {PORTS_APART} apart from port "
            f"{config.port}, also a broker's; choose another --broker-port or --namesrv-port"
        )
    return plans


def left_out(config: BrokerConfig, count: int, files: Files) -> list[str]:
    """Return the names of brokers that have messages below the directory, and are not started."""
    if not config.name.endswith(FIRST_SUFFIX):
        return []
    names = [_name_of(config, number) for number in range(count, BROKERS_MAX)]
    return [name for name in names if files.is_dir(config.data_path / name / "commitlog")]


def _name_of(config: BrokerConfig, number: int) -> str:
    """Return broker-a, …, broker-z, broker-aa, …"""
    high, low = divmod(number, len(ascii_lowercase))
    letters = (ascii_lowercase[high - 1] if high else "") + ascii_lowercase[low]
    return f"{config.name.removesuffix(FIRST_SUFFIX)}-{letters}"


def child_words(
    plan: BrokerPlan,
    namesrv: str,
    *,
    host: str,
    config: Path | None,
    sets: dict[str, object],
    log_level: str,
) -> list[str]:
    """Return the command line of a broker process; its options win over the settings given."""
    words = ["broker", "--supervised", "--output", "json", "--log-level", log_level]
    words += ["--name", plan.name, "--namesrv", namesrv, "--host", host]
    words += ["--port", str(plan.port), "--data", plan.data]
    if config is not None:
        words += ["--config", str(config)]
    if plan.admin_port >= 0:
        sets = {**sets, "admin_port": plan.admin_port}
    for name, value in sets.items():
        words += ["--set", f"{name}={value}"]
    return words
