"""The expressions of the dashboard and of the alerts that ship."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def dashboard() -> list[str]:
    """Return the queries of the dashboard, with its variables filled in."""
    found = json.loads((ROOT / "deploy/grafana/inorder.json").read_text())
    queries = [target["expr"] for panel in found["panels"] for target in panel.get("targets", ())]
    fills = {"$cluster": ".*", "$broker": ".*", "$__rate_interval": "10s"}
    for name, value in fills.items():
        queries = [one.replace(name, value) for one in queries]
    return queries


def alerts() -> dict[str, str]:
    """Return the expressions of the alerts by name."""
    text = (ROOT / "deploy/prometheus/inorder-alerts.yml").read_text()
    return dict(re.findall(r"- alert: (\w+)\n\s+expr: (.+)", text))
