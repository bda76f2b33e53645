"""Files first, connections get the rest."""

from __future__ import annotations

import pytest

from inorder.errors import ConfigError
from inorder.net.server import connections_below


@pytest.mark.parametrize(
    ("limit", "kept", "below"),
    [(1024, 304, 720), (1 << 20, 16_432, (1 << 20) - 16_432), (144, 88, 56), (64, 8, 56)],
)
def test_connections_stay_below_what_is_kept_for_files(limit: int, kept: int, below: int) -> None:
    """The descriptors above it are free for files, whatever else is open."""
    assert connections_below(limit, kept, server="broker a") == below


@pytest.mark.parametrize(("limit", "kept"), [(64, 64), (143, 88), (63, 8)])
def test_a_limit_without_room_for_connections_is_refused(limit: int, kept: int) -> None:
    """It says how many there are, how many are needed, and for what."""
    with pytest.raises(ConfigError, match=rf"may open {limit} .* needs {kept + 56} .*ulimit -n"):
        connections_below(limit, kept, server="broker a")
