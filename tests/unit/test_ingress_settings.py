"""`CHIMERA_TIME_SCALE` reaches every timer of the ingress, and nothing else."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from services.ingress.settings import IngressKnobs, IngressSettings


def test_every_waiting_time_is_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHIMERA_TIME_SCALE", "0.5")
    plain, scaled = asdict(IngressKnobs()), asdict(IngressSettings().knobs())
    times = {name for name in plain if name.endswith(("_s", "_ms"))}
    assert len(times) > 5
    assert {name: plain[name] * 0.5 for name in times} == {name: scaled[name] for name in times}
    assert {name: scaled[name] for name in plain.keys() - times} == {
        name: plain[name] for name in plain.keys() - times
    }
