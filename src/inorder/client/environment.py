"""The name servers of whoever was given none: this process's environment says which."""

from __future__ import annotations

import os

from inorder.client.state.nameservers import choose, parse_name_servers


def name_servers(given: str | None) -> list[str]:
    """Return the addresses: given, of INORDER_NAMESRV, of NAMESRV_ADDR, or of `inorder up`.

    Raises ConfigError for one that is no address.
    """
    return parse_name_servers(*choose(given, os.environ))
