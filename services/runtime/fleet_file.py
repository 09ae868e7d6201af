"""Reads `fleet.yaml`: validated before anything starts, every fault with file, line, key and expectation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from services.core.fleet import Device, Fleet, Pool
from services.runtime.fleet_schema import FleetEntry
from services.runtime.pool_schema import PoolEntry, TimeoutsEntry


class FleetFileError(ValueError):
    """The fleet file is wrong. One line a fault: `file:line: key: what is wrong, what was expected`."""


def load_fleet(path: Path) -> Fleet:
    """The fleet that the file describes. Raises FleetFileError."""
    return to_fleet(read_fleet_entry(path))


def read_fleet_entry(path: Path) -> FleetEntry:
    """The file as validated entries, still with what only `chimera up` needs (`launch`)."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as fault:
        raise FleetFileError(f"{path}: cannot be read: {fault}") from None
    return parse_fleet(text, str(path))


def parse_fleet(text: str, source: str) -> FleetEntry:
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
    except yaml.YAMLError as fault:
        mark = getattr(fault, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        problem = getattr(fault, "problem", None) or "not YAML"
        raise FleetFileError(f"{source}:{line}: not YAML: {problem}") from None
    if not isinstance(data, dict):
        raise FleetFileError(f"{source}:1: expected a mapping with the key pools, got {type(data).__name__}")
    faults = _repeated_keys(root, source)
    if faults:
        raise FleetFileError("\n".join(faults))
    try:
        return FleetEntry.model_validate(data)
    except ValidationError as fault:
        raise FleetFileError("\n".join(_described(fault, root, source))) from None


def _repeated_keys(root: yaml.Node | None, source: str, path: str = "") -> list[str]:
    """YAML lets the last of two equal keys win in silence; here that is a fault."""
    faults: list[str] = []
    if isinstance(root, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in root.value:
            name = str(key.value)
            where = f"{path}.{name}" if path else name
            if name in seen:
                faults.append(f"{source}:{key.start_mark.line + 1}: {where}: given twice, expected once")
            seen.add(name)
            faults += _repeated_keys(value, source, where)
    elif isinstance(root, yaml.SequenceNode):
        for index, item in enumerate(root.value):
            faults += _repeated_keys(item, source, f"{path}[{index}]")
    return faults


def _described(fault: ValidationError, root: yaml.Node | None, source: str) -> list[str]:
    lines = []
    for error in fault.errors(include_url=False):
        location = [part for part in error["loc"] if part != "[key]"]
        line = _line_of(root, location)
        message = error["msg"].removeprefix("Value error, ")
        if error["type"] == "extra_forbidden":
            message = f"no such key; expected one of {', '.join(_known_keys(location))}"
        elif error["type"] != "value_error" and error["type"] != "missing":
            message = f"{_shown(error['input'])}: {message}"
        lines.append(f"{source}:{line}: {_key_path(location)}: {message}")
    return lines


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _known_keys(location: Sequence[str | int]) -> list[str]:
    models: dict[str, Any] = {"pools": PoolEntry, "timeouts": TimeoutsEntry}
    model: Any = FleetEntry
    for part in location[:-1]:
        if isinstance(part, str):
            field = model.model_fields.get(part)
            model = models.get(part) or _model_of(field.annotation if field else None) or model
    return sorted(model.model_fields)


def _model_of(annotation: Any) -> Any:
    candidates = [annotation, *getattr(annotation, "__args__", ())]
    return next((candidate for candidate in candidates if hasattr(candidate, "model_fields")), None)


def _key_path(location: Sequence[str | int]) -> str:
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path or "(whole file)"


def _line_of(root: yaml.Node | None, location: Sequence[str | int]) -> int:
    """The line of the innermost node on the way to `location` that the file has."""
    line, node = 1, root
    for part in location:
        if isinstance(node, yaml.MappingNode):
            found = next(((key, value) for key, value in node.value if key.value == str(part)), None)
            if found is None:
                break
            line, node = found[0].start_mark.line + 1, found[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line + 1
        else:
            break
    return line


def to_fleet(entry: FleetEntry) -> Fleet:
    return Fleet(
        pools=tuple(_pool(pool, entry) for pool in entry.pools),
        prefix=entry.prefix,
        partitions=entry.partitions,
        deadlines_s=entry.defaults.deadlines_s.as_mapping(),
        weights=entry.defaults.weights.as_mapping(),
        max_tries=entry.defaults.max_tries,
        devices=tuple(Device(device.name, device.slots) for device in entry.devices),
        tenant_weights={name: tenant.weight for name, tenant in entry.tenants.items()},
        evict_batch=entry.defaults.evict_batch,
        interactive_wait_s=entry.defaults.interactive_wait_s,
    )


def _pool(pool: PoolEntry, fleet: FleetEntry) -> Pool:
    timeouts = pool.timeouts or fleet.defaults.timeouts
    return Pool(
        name=pool.name,
        model=pool.model,
        version=pool.version,
        provider=pool.provider,
        backend=pool.backend,
        backend_model=pool.backend_model,
        base_urls=pool.urls(),
        api_key_env=pool.api_key.removeprefix("env:") if pool.api_key else None,
        capabilities=frozenset(pool.capabilities),
        features=frozenset(pool.features),
        slots=pool.slots,
        quality=pool.quality,
        price=pool.price.to_price(),
        context_tokens=pool.context_tokens,
        timeouts=timeouts.to_timeouts(),
        streaming=pool.streaming,
        stream_usage=pool.stream_usage,
        prior_seconds=pool.prior_seconds,
        simulated=pool.simulated.to_law() if pool.simulated else None,
        external=pool.external,
        fallbacks=tuple(pool.fallbacks),
        device=pool.device,
        device_reserved=pool.device_reserved,
        min_slots=pool.min_slots,
        adaptive=pool.adaptive,
        reserved_interactive=pool.reserved_interactive,
        breaker=pool.breaker.to_law(),
        batching=pool.batching.to_batching(),
        warm_up=pool.warm_up,
        floor=pool.floor,
        azure=pool.azure.to_azure() if pool.azure else None,
        mcp=pool.mcp.to_mcp() if pool.mcp else None,
    )


def missing_keys(fleet: Fleet, environment: Mapping[str, str]) -> list[str]:
    """What pools name and the environment has not, as sentences that say what to set."""
    return [sentence for pool in fleet.pools for sentence in missing_of(pool, environment)]


def missing_of(pool: Pool, environment: Mapping[str, str]) -> list[str]:
    return [
        f"pool {pool.name}: {'api_key' if name == pool.api_key_env else 'mcp.env'} names the environment "
        f"variable {name}, which is not set"
        for name in pool.secret_names()
        if not environment.get(name)
    ]
