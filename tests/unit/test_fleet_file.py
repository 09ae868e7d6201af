"""O3: a wrong fleet file is refused with file, line, key and what was expected."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.runtime.fleet_file import FleetFileError, load_fleet, missing_keys, parse_fleet, to_fleet

ROOT = Path(__file__).parents[2]
POOL = "pools:\n  - name: a\n    model: m\n    base_url: http://x/v1\n"


@pytest.mark.parametrize("name", ["fleet.yaml", "examples/fleet.simulated.yaml", "examples/fleet.mixed.yaml"])
def test_shipped_fleet_files_are_valid(name: str) -> None:
    assert load_fleet(ROOT / name).pools


@pytest.mark.parametrize(
    ("text", "line", "key", "expectation"),
    [
        ("pools: []\n", 1, "pools", "at least 1 item"),
        ("pools: [\n", 2, "not YAML", "expected"),
        ("x\n", 1, "expected a mapping", "pools"),
        (POOL + "    slots: many\n", 5, "pools[0].slots", "integer"),
        (POOL + "    slots: 0\n", 5, "pools[0].slots", "greater than or equal to 1"),
        (POOL + "    slts: 3\n", 5, "pools[0].slts", "expected one of"),
        (POOL + "    model: n\n", 5, "pools[0].model", "given twice"),
        (POOL + "    price: {input: 2}\n", 5, "pools[0].price.input", "input_per_mtok"),
        (POOL + "    api_key: sk-secret\n", 5, "pools[0].api_key", "env:"),
        (
            POOL + "    timeouts:\n      connect_s: 5\n      first_token_s: 1\n",
            5,
            "pools[0].timeouts",
            "connect_s <=",
        ),
        (POOL + "  - name: a\n    model: m\n    base_url: http://y\n", 1, "(whole file)", "must differ"),
        ("prefix: chimera\n" + POOL, 1, "prefix", "ending in one of"),
        ("pools:\n  - name: a\n    base_url: http://x\n", 2, "pools[0].model", "required"),
        (POOL.replace("http://x/v1", "ftp://x"), 4, "pools[0].base_url", "http://127.0.0.1"),
    ],
)
def test_o3_a_wrong_file_names_line_key_and_expectation(
    text: str, line: int, key: str, expectation: str
) -> None:
    with pytest.raises(FleetFileError) as fault:
        parse_fleet(text, "f.yaml")
    first = str(fault.value).splitlines()[0]
    assert first.startswith(f"f.yaml:{line}: ")
    assert key in first
    assert expectation in first


def test_a_secret_written_into_the_file_is_not_repeated_in_the_error() -> None:
    with pytest.raises(FleetFileError) as fault:
        parse_fleet(POOL + "    api_key: sk-very-secret\n", "f.yaml")
    assert "sk-very-secret" not in str(fault.value)


def test_a_missing_key_is_named_with_its_pool() -> None:
    fleet = to_fleet(parse_fleet(POOL + "    api_key: env:SOME_KEY\n", "f.yaml"))
    assert missing_keys(fleet, {}) == [
        "pool a: api_key names the environment variable SOME_KEY, which is not set"
    ]
    assert missing_keys(fleet, {"SOME_KEY": "x"}) == []


def test_backend_addresses_lose_a_trailing_v1_so_that_paths_can_be_added() -> None:
    assert to_fleet(parse_fleet(POOL, "f.yaml")).pools[0].base_urls == ("http://x",)
