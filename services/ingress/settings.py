"""What the ingress is told from outside: `CHIMERA_*` variables."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass, replace

from pydantic import Field, ValidationInfo, field_validator

from services.runtime.settings import ServiceSettings


@dataclass(frozen=True, slots=True)
class IngressKnobs:
    """Times in seconds unless the name says otherwise."""

    ping_s: float = 10.0  # between the pings of a silent stream
    repair_s: float = 0.25  # from the outcome to the repair of chunks that are missing
    lost_workers_every_s: float = 0.5  # between looks whether the workers of streams are dead
    grace_s: float = 1.0  # how long past the deadline the log's own word is waited for
    send_again_s: float = 0.5  # pause after a record that was not acknowledged
    key_poll_s: float = 0.2
    key_takeover_s: float = 2.0  # after which a keyed call that nobody accepted is sent by who waits for it
    rows_lag_s: float = 5.0  # how far behind the log the rows may be before a silent task counts as lost
    commit_every_s: float = 0.15
    submissions_poll_ms: int = 500
    submissions_records: int = 16  # in a batch: their CPU time is what a chat may have to wait for
    submissions_in_flight: int = 64  # each up to a record in size; claimed bodies one at a time
    floor_entries: int = 512  # answers kept for requests that allow a degraded one
    floor_bytes: int = 8 * 1024 * 1024  # of them
    floor_ttl_s: float = 3600.0
    blobs_every_s: float = 3600.0  # between looks for blobs that have outlived every task
    trust_tenant_header: bool = False

    def scaled(self, factor: float) -> IngressKnobs:
        """All waiting times by `factor`; counts and the time-outs of the broker's answers stay."""
        return replace(
            self,
            ping_s=self.ping_s * factor,
            repair_s=self.repair_s * factor,
            lost_workers_every_s=max(0.05, self.lost_workers_every_s * factor),
            grace_s=self.grace_s * factor,
            send_again_s=self.send_again_s * factor,
            key_poll_s=self.key_poll_s * factor,
            key_takeover_s=self.key_takeover_s * factor,
            rows_lag_s=self.rows_lag_s * factor,
            commit_every_s=self.commit_every_s * factor,
            submissions_poll_ms=max(20, int(self.submissions_poll_ms * factor)),
            blobs_every_s=self.blobs_every_s * factor,
            floor_ttl_s=self.floor_ttl_s * factor,
        )


class IngressSettings(ServiceSettings):
    """The shared settings and the edge's own address."""

    insecure: bool = False  # allow an address beyond this machine although there are no keys yet
    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65_535)
    trust_tenant_header: bool = False  # whether `x-chimera-tenant` names the tenant: a gateway vouches for it
    instance_id: str = ""  # empty: host name and port; its hash names the partitions that are read

    @field_validator("host")
    @classmethod
    def _loopback(cls, host: str, info: ValidationInfo) -> str:
        if not info.data.get("insecure") and not is_loopback(host):
            raise ValueError(
                f"{host!r} is reachable from other machines and there are no keys yet: expected a loopback "
                "address such as 127.0.0.1, or CHIMERA_INSECURE=true (chimera up --insecure)"
            )
        return host

    @property
    def instance(self) -> str:
        return self.instance_id or f"{socket.gethostname()}:{self.port}"

    def knobs(self) -> IngressKnobs:
        knobs = replace(IngressKnobs(), trust_tenant_header=self.trust_tenant_header)
        return knobs.scaled(self.time_scale)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address; names other than localhost are not looked up."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
