"""The ingress's own view: the line that it logs of each call when it is over."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import orjson

from loadtest.chaos.evidence import EdgeLine


class EdgeLogs:
    """The log files of the ingresses by name, read from where they ended at the start of a seed."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = files
        self._begins = {name: file.stat().st_size if file.exists() else 0 for name, file in files.items()}

    def lines(self, run_id: str) -> list[EdgeLine]:
        """The calls of that run. A line that a kill cut in two is none."""
        found = []
        for name, file in self._files.items():
            if not file.exists():
                continue
            with file.open("rb") as log:
                log.seek(self._begins[name])
                found += [line for raw in log if (line := _line(name, raw, run_id)) is not None]
        return found


def _line(edge: str, raw: bytes, run_id: str) -> EdgeLine | None:
    if b'"event":"request"' not in raw or run_id.encode() not in raw:
        return None
    try:
        fields = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    if not str(fields.get("request_id", "")).startswith(f"{run_id}-"):
        return None
    return EdgeLine(
        edge,
        fields["request_id"],
        fields.get("task_id"),
        fields.get("attempt"),
        fields["http_status"],
        fields["status"],
        fields.get("reason"),
    )
