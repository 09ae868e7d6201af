"""What the ingress is told from outside: `CHIMERA_*` variables."""

from __future__ import annotations

import ipaddress
import socket

from pydantic import Field, ValidationInfo, field_validator

from services.runtime.settings import ServiceSettings


class IngressSettings(ServiceSettings):
    """The shared settings and the edge's own address."""

    insecure: bool = False  # allow an address beyond this machine although there are no keys yet
    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65_535)
    instance_id: str = ""  # empty: host name and port; its hash names the partitions that are read

    @field_validator("host")
    @classmethod
    def _loopback(cls, host: str, info: ValidationInfo) -> str:
        if not info.data.get("insecure") and not is_loopback(host):
            raise ValueError(
                f"{host!r} is reachable from other machines and there are no keys yet: expected a loopback "
                "address such as 127.0.0.1, or CHIMERA_INSECURE=true (--insecure)"
            )
        return host

    @property
    def instance(self) -> str:
        return self.instance_id or f"{socket.gethostname()}:{self.port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address; names other than localhost are not looked up."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
