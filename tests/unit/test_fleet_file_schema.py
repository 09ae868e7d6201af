"""The JSON Schema of fleet.yaml: editors mark what the services refuse, and nothing that they take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from services.runtime.fleet_schema import fleet_file_schema

ROOT = Path(__file__).parents[2]
POOL = {"name": "a", "model": "m", "base_url": "http://127.0.0.1:1/v1"}


@pytest.mark.parametrize("name", ["fleet.yaml", "examples/fleet.mixed.yaml", "examples/fleet.simulated.yaml"])
def test_the_files_that_ship_are_valid_and_name_the_schema(name: str) -> None:
    text = (ROOT / name).read_text()
    first = text.splitlines()[0]
    assert first.startswith("# yaml-language-server: $schema=")
    assert (ROOT / name).parent.joinpath(first.split("=", 1)[1]).exists()
    jsonschema.validate(yaml.safe_load(text), fleet_file_schema())


@pytest.mark.parametrize(
    "wrong",
    [
        {"pools": []},
        {"pools": [{**POOL, "slots": 0}]},
        {"pools": [{**POOL, "sluts": 4}]},
        {"pools": [{**POOL, "backend": "opanai"}]},
        {"pools": [POOL], "partitions": "eight"},
        {"pools": [{**POOL, "breaker": {"failure_rate": 2}}]},
    ],
)
def test_what_a_service_would_refuse_is_marked(wrong: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, fleet_file_schema())
