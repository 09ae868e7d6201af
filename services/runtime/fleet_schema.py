"""What may stand in `fleet.yaml`: one frozen model per mapping, every key with its unit and default."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from schemas.topics import Priority
from services.runtime.pool_schema import Entry, PoolEntry, TimeoutsEntry

PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}[.\-_]")
Seconds = Annotated[float, Field(gt=0, le=7 * 86_400)]
Weight = Annotated[int, Field(ge=1, le=1000)]


class DeadlinesEntry(Entry):
    """Seconds that a task of each priority has when its caller names no deadline; 7 days at most."""

    interactive: Seconds = 120.0
    standard: Seconds = 900.0
    batch: Seconds = 86_400.0

    def as_mapping(self) -> Mapping[Priority, float]:
        return {"interactive": self.interactive, "standard": self.standard, "batch": self.batch}


class WeightsEntry(Entry):
    """Shares in which a worker serves its lanes while all have work."""

    interactive: Weight = 8
    standard: Weight = 3
    batch: Weight = 1

    def as_mapping(self) -> Mapping[Priority, int]:
        return {"interactive": self.interactive, "standard": self.standard, "batch": self.batch}


class DefaultsEntry(Entry):
    deadlines_s: DeadlinesEntry = DeadlinesEntry()
    weights: WeightsEntry = WeightsEntry()
    timeouts: TimeoutsEntry = TimeoutsEntry()
    max_tries: int = Field(default=3, ge=1, le=20)
    evict_batch: bool = True
    interactive_wait_s: float = Field(default=0.05, ge=0)


class DeviceEntry(Entry):
    """An accelerator, or a host, whose slots several pools share."""

    name: str = Field(min_length=1, max_length=63)
    slots: int = Field(ge=1, le=4096)


class TenantEntry(Entry):
    """A tenant's share against others': one of weight 2 gets twice the tokens of one of weight 1."""

    weight: float = Field(default=1.0, gt=0, le=1000)


class FleetEntry(Entry):
    """The whole file."""

    version: Literal[1] = 1
    prefix: str = "chimera."
    partitions: int = Field(default=8, ge=1, le=256)
    defaults: DefaultsEntry = DefaultsEntry()
    devices: list[DeviceEntry] = Field(default=[])
    tenants: dict[str, TenantEntry] = Field(default={})
    pools: list[PoolEntry] = Field(min_length=1)

    @field_validator("prefix")
    @classmethod
    def _prefixed(cls, prefix: str) -> str:
        if not PREFIX.fullmatch(prefix):
            raise ValueError(
                f"{prefix!r}: expected letters, digits, '.', '_', '-', ending in one of '.', '_', '-'"
            )
        return prefix

    @model_validator(mode="after")
    def _unique(self) -> Self:
        names = [pool.name for pool in self.pools]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(f"pool names must differ; given twice: {', '.join(repeated)}")
        return self

    @model_validator(mode="after")
    def _known(self) -> Self:
        pools, devices = {pool.name for pool in self.pools}, {device.name: device for device in self.devices}
        if len(devices) != len(self.devices):
            raise ValueError("device names must differ")
        reserved = dict.fromkeys(devices, 0)
        for pool in self.pools:
            strange = sorted(set(pool.fallbacks) - (pools - {pool.name}))
            if strange:
                raise ValueError(
                    f"pool {pool.name}: fallbacks names {', '.join(strange)}; expected other pools"
                )
            if pool.device is not None and pool.device not in devices:
                raise ValueError(
                    f"pool {pool.name}: device {pool.device!r}; expected one of devices: {', '.join(devices)}"
                )
            if pool.device is not None:
                reserved[pool.device] += pool.device_reserved
        for name, slots in reserved.items():
            if slots > devices[name].slots:
                raise ValueError(
                    f"device {name}: its pools reserve {slots} slots; it has {devices[name].slots}"
                )
        return self


def fleet_file_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of `fleet.yaml`, for editors. What keys must fit together it cannot say."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **FleetEntry.model_json_schema(),
        "title": "fleet.yaml of Chimera",
    }
