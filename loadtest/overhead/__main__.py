"""The load generator as a process of its own: runs one HTTP load and writes its samples."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import uvloop
from cyclopts import App

from loadtest.overhead.http_load import HttpLoad, Load

app = App()


@app.default
def generate(*, url: str, body_file: Path, rate: float, seconds: float, stream: bool, out_file: Path) -> None:
    """POST the body of a file at a fixed rate, timed from the scheduled sends; write the samples."""
    load = Load(url, body_file.read_bytes(), rate, seconds, stream)
    samples = uvloop.run(HttpLoad(load).run())
    out_file.write_text(json.dumps([asdict(sample) for sample in samples]))


if __name__ == "__main__":
    app()
