"""`chimera schemas`: the contract's documents, and whether they are what the models say."""

from __future__ import annotations

import sys
from pathlib import Path

import orjson
from cyclopts import App

from schemas.documents import asyncapi, message_schemas
from services.runtime.fleet_schema import fleet_file_schema

schemas_app = App(name="schemas", help="JSON Schemas and the AsyncAPI document of the bus.")
FOLDER = Path("schemas/generated")
FLEET_FILE_SCHEMA = "fleet.yaml.schema.json"


def _documents() -> dict[str, bytes]:
    documents = {f"{name}.schema.json": schema for name, schema in message_schemas().items()}
    documents["asyncapi.json"] = asyncapi()
    documents[FLEET_FILE_SCHEMA] = fleet_file_schema()
    return {
        name: orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS) + b"\n"
        for name, document in documents.items()
    }


@schemas_app.command
def write(folder: Path = FOLDER) -> None:
    """Write them all."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in _documents().items():
        (folder / name).write_bytes(text)


@schemas_app.command
def check(folder: Path = FOLDER) -> None:
    """Exit 1 with the name of each document that is missing, stale or no longer made."""
    documents = _documents()
    found = {path.name: path.read_bytes() for path in folder.glob("*.json")}
    wrong = sorted(name for name in documents.keys() | found.keys() if documents.get(name) != found.get(name))
    for name in wrong:
        print(f"{folder / name}: not what the models say; run: make schemas", file=sys.stderr)
    if wrong:
        raise SystemExit(1)


@schemas_app.command
def fleet() -> None:
    """Print the JSON Schema of fleet.yaml, for editors."""
    print(_documents()[FLEET_FILE_SCHEMA].decode(), end="")
