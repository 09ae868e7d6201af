"""What every service is told from outside: `CHIMERA_*` variables, checked before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from services.adapters.kafka.traits import BrokerKind


class ServiceSettings(BaseSettings):
    """Shared by all services; each adds its own fields in a subclass."""

    model_config = SettingsConfigDict(env_prefix="CHIMERA_", frozen=True, extra="ignore")

    kafka_bootstrap_servers: str = "127.0.0.1:9092"
    broker: BrokerKind = "external"  # its row in the table of broker traits
    fleet_file: Path = Path("fleet.yaml")
    fleet_follow_file: Path | None = Field(
        default=None,
        description="taken over while the service runs, as often as it changes; default: fleet_file",
    )
    database_url: str = "sqlite+aiosqlite:///.chimera/chimera.db"
    blob_dir: Path = Path(".chimera/blobs")
    drain_s: float = Field(default=30.0, ge=0, description="seconds that running work has after SIGTERM")
    time_scale: float = Field(
        default=1.0, gt=0, le=1, description="multiplies every timer: tests pass less than 1"
    )
    health_host: str = "127.0.0.1"
    health_port: int = Field(
        default=0, ge=0, le=65_535, description="/healthz, /readyz, /metrics; 0: any free"
    )
    log_level: Literal["debug", "info", "warning", "error"] = "info"
