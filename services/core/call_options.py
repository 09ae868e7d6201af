"""What a caller may say to Chimera beside the OpenAI body: `x-chimera-*` headers, or `metadata` keys.

A header wins over the `metadata` key of the same name (`x-chimera-deadline-ms`, `chimera_deadline_ms`). The
body travels as the client's own bytes, so these keys go on to the backend with the rest of its metadata.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from schemas.messages import Affinity, DataPolicy, Objective
from schemas.topics import LONGEST_DEADLINE_MS, PRIORITIES, Priority
from services.core.field_checks import Refusal, expected

OBJECTIVES: tuple[Objective, ...] = get_args(Objective)
AFFINITIES: tuple[Affinity, ...] = get_args(Affinity)
DATA_POLICIES: tuple[DataPolicy, ...] = get_args(DataPolicy)
TENANT_HEADER = "x-chimera-tenant"
DEFAULT_TENANT = "default"
_NAMES = (
    "priority",
    "objective",
    "deadline_ms",
    "session_id",
    "required_capabilities",
    "affinity",
    "data_policy",
    "degraded",
)
_METADATA_PREFIX = "chimera_"
_CAPABILITY = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_MOST_CAPABILITIES = 16
_MOST_SESSION_CHARACTERS = 128
_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/-]{0,127}")


@dataclass(frozen=True, slots=True)
class CallOptions:
    """`deadline_ms` is relative to the arrival, as the caller says it; None leaves it to the priority.

    affinity: what the session's own worker is worth: a wait (sticky), a look (soft), nothing (off).
    data_policy: `local` keeps the request from pools whose provider is outside.
    degraded: `allow` takes an older or a fixed answer, marked as such, rather than a failure.
    """

    priority: Priority = "interactive"
    objective: Objective = "balanced"
    deadline_ms: int | None = None
    session_id: str | None = None
    required_capabilities: tuple[str, ...] = ()
    affinity: Affinity = "soft"
    data_policy: DataPolicy = "any"
    degraded: Literal["deny", "allow"] = "deny"


@dataclass(frozen=True, slots=True)
class _Said:
    value: str
    param: str


def read_options(headers: Mapping[str, str], metadata: Mapping[str, Any]) -> CallOptions | Refusal:
    """The options of a call; header names are lower-case. A wrong or unknown one is refused by name."""
    unknown = next(
        (key for key in metadata if key.startswith(_METADATA_PREFIX) and key[8:] not in _NAMES), None
    )
    if unknown is not None:
        known = ", ".join(_METADATA_PREFIX + name for name in _NAMES)
        return expected(f"metadata.{unknown}", f"one of {known}")
    values: dict[str, Any] = {}
    for name in _NAMES:
        said = _said(name, headers, metadata)
        if said is None:
            continue
        value = _READERS[name](said)
        if isinstance(value, Refusal):
            return value
        values[name] = value
    return CallOptions(**values) if values else _DEFAULTS


def read_tenant(headers: Mapping[str, str], *, trusted: bool) -> str | Refusal:
    """Whose call it is. Only where a gateway in front authenticated it does the header say so."""
    value = headers.get(TENANT_HEADER) if trusted else None
    if value is None:
        return DEFAULT_TENANT
    tenant = value.strip()
    if _TENANT.fullmatch(tenant):
        return tenant
    return expected(TENANT_HEADER, "1 to 128 letters, digits or . _ : @ / -, the first a letter or digit")


def _said(name: str, headers: Mapping[str, str], metadata: Mapping[str, Any]) -> _Said | None:
    header = _HEADER_NAMES[name]
    value = headers.get(header)
    if value is not None:
        return _Said(value.strip(), header)
    key = _METADATA_PREFIX + name
    return _Said(metadata[key].strip(), f"metadata.{key}") if key in metadata else None


def _priority(said: _Said) -> Any:
    if said.value in PRIORITIES:
        return said.value
    refusal = expected(said.param, "one of " + ", ".join(PRIORITIES))
    if said.value not in OBJECTIVES:
        return refusal
    name = said.param.replace("priority", "objective")
    return Refusal(
        f"{refusal.message} What to optimise ({', '.join(OBJECTIVES)}) is the objective: '{name}'.",
        said.param,
    )


def _one_of(*values: str) -> Callable[[_Said], Any]:
    def read(said: _Said) -> Any:
        return said.value if said.value in values else expected(said.param, "one of " + ", ".join(values))

    return read


def _deadline(said: _Said) -> Any:
    value = said.value
    whole = value.isascii() and value.isdigit() and len(value) <= 12
    if whole and 1 <= int(value) <= LONGEST_DEADLINE_MS:
        return int(value)
    return expected(
        said.param, f"milliseconds from now, a whole number from 1 to {LONGEST_DEADLINE_MS} (7 days)"
    )


def _session(said: _Said) -> Any:
    if 1 <= len(said.value) <= _MOST_SESSION_CHARACTERS and said.value.isprintable():
        return said.value
    return expected(said.param, f"1 to {_MOST_SESSION_CHARACTERS} printable characters")


def _capabilities(said: _Said) -> Any:
    names = [name.strip() for name in said.value.split(",")]
    if len(names) <= _MOST_CAPABILITIES and all(_CAPABILITY.fullmatch(name) for name in names):
        return tuple(dict.fromkeys(names))
    return expected(said.param, f"at most {_MOST_CAPABILITIES} capabilities with commas between them")


_DEFAULTS = CallOptions()
_HEADER_NAMES = {name: "x-chimera-" + name.replace("_", "-") for name in _NAMES}
_READERS = {
    "priority": _priority,
    "objective": _one_of(*OBJECTIVES),
    "deadline_ms": _deadline,
    "session_id": _session,
    "required_capabilities": _capabilities,
    "affinity": _one_of(*AFFINITIES),
    "data_policy": _one_of(*DATA_POLICIES),
    "degraded": _one_of("deny", "allow"),
}
