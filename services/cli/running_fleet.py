"""Which fleet a command is about: the one that `chimera up` started here, or that `CHIMERA_*` names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast, get_args

from schemas.topics import TopicNames
from services.adapters.kafka.traits import BrokerKind, BrokerTraits, traits_of
from services.cli.processes import StateDir
from services.cli.run_record import RunRecord
from services.core.fleet import Fleet
from services.runtime.fleet_file import load_fleet

_BOOTSTRAP = "CHIMERA_KAFKA_BOOTSTRAP_SERVERS"


@dataclass(frozen=True, slots=True)
class RunningFleet:
    """Where its broker, database and blobs are. `url` of its edge, where `chimera up` runs it."""

    fleet: Fleet
    bootstrap_servers: str
    broker: BrokerKind
    database_url: str
    blob_dir: Path
    url: str | None = None

    @property
    def names(self) -> TopicNames:
        return TopicNames(self.fleet.prefix)

    @property
    def traits(self) -> BrokerTraits:
        return traits_of(self.broker)


def find_fleet(state_dir: Path, environment: Mapping[str, str] | None = None) -> RunningFleet:
    """The environment wins over the run's record; where it names another broker, nothing of the record holds.

    Raises ValueError where neither names one.
    """
    said = dict(os.environ if environment is None else environment)
    record = RunRecord.read(StateDir(state_dir).run_file)
    recorded = record.variables if record is not None else {}
    if said.get(_BOOTSTRAP, recorded.get(_BOOTSTRAP)) != recorded.get(_BOOTSTRAP):
        record, recorded = None, {}
    variables = {**recorded, **said}
    if not variables.get(_BOOTSTRAP):
        raise ValueError(f"no fleet runs from {state_dir}: start one (chimera up), or set {_BOOTSTRAP}")
    broker = variables.get("CHIMERA_BROKER", "external")
    if broker not in get_args(BrokerKind):
        raise ValueError(f"CHIMERA_BROKER: {broker!r}, expected one of {', '.join(get_args(BrokerKind))}")
    state = StateDir(state_dir)
    return RunningFleet(
        fleet=load_fleet(Path(variables.get("CHIMERA_FLEET_FILE", "fleet.yaml"))),
        bootstrap_servers=variables[_BOOTSTRAP],
        broker=cast("BrokerKind", broker),
        database_url=variables.get("CHIMERA_DATABASE_URL", state.database_url()),
        blob_dir=Path(variables.get("CHIMERA_BLOB_DIR", str(state_dir / "blobs"))),
        url=None if record is None else record.url,
    )
