"""The done-map: what goes into commit metadata comes out of it, or nothing does."""

import base64
import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.done_map import MAX_METADATA_BYTES, SPAN, DoneSet, decode, encode


@given(st.integers(0, 2**50), st.sets(st.integers(0, SPAN - 1), max_size=300))
def test_round_trip(watermark: int, steps: set[int]) -> None:
    offsets = {watermark + step for step in steps}
    decoded = decode(encode(DoneSet(offsets), watermark), watermark)
    assert decoded.fault is None
    assert set(decoded.done) == offsets
    assert all(offset in decoded.done for offset in offsets)
    assert watermark + SPAN not in decoded.done


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.9, 1.0])
def test_any_full_span_fits_into_commit_metadata(share: float) -> None:
    draw = random.Random(share)
    watermark = 2**63 - 2 * SPAN
    offsets = {watermark + step for step in range(SPAN) if draw.random() < share} | {watermark + SPAN - 1}
    metadata = encode(DoneSet(offsets), watermark)
    assert len(metadata.encode("ascii")) <= MAX_METADATA_BYTES
    assert set(decode(metadata, watermark).done) == offsets


def test_regular_maps_are_squeezed() -> None:
    assert len(encode(DoneSet(range(1, SPAN)), 0)) < 200


def test_what_lies_outside_the_span_is_left_out() -> None:
    metadata = encode(DoneSet([99, 100, 100 + SPAN - 1, 100 + SPAN]), 100)
    assert set(decode(metadata, 100).done) == {100, 100 + SPAN - 1}
    assert encode(DoneSet([99, 100 + SPAN]), 100) == ""


@given(st.text() | st.binary().map(lambda raw: f"dm1z:7:{base64.b64encode(raw).decode()}"))
def test_foreign_metadata_is_empty_and_never_raises(metadata: str) -> None:
    decoded = decode(metadata, 7)
    assert decoded.fault is None or not decoded.done


@pytest.mark.parametrize(
    ("metadata", "fault"),
    [
        ("consumer-1 at 12:30", "not a done-map"),
        ("dm2p:7:AQ==", "unknown version"),
        ("dm1q:7:AQ==", "unknown version"),
        ("dm1p:8:AQ==", "written for offset"),
        ("dm1p:7:A", "damaged"),
        ("dm1p:7:ä", "damaged"),
        ("dm1z:7:AQ==", "damaged"),
        ("dm1z:7:" + base64.b64encode(zlib.compress(b"\x01" * 40)[:-6]).decode(), "damaged"),
        ("dm1z:7:" + base64.b64encode(zlib.compress(bytes(50_000_000))).decode(), "longer"),
        ("dm1p:7:" + base64.b64encode(b"\x01" * 2501).decode(), "longer"),
    ],
)
def test_an_unreadable_map_says_why(metadata: str, fault: str) -> None:
    decoded = decode(metadata, 7)
    assert not decoded.done
    assert decoded.fault is not None
    assert fault in decoded.fault


@given(st.sets(st.integers(0, 5_000)), st.integers(0, 5_000))
def test_dropping_keeps_everything_at_or_above(offsets: set[int], below: int) -> None:
    kept = DoneSet(offsets)
    copied = kept.copy()
    kept.drop_below(below)
    assert {offset for offset in kept if offset >= below} == {offset for offset in offsets if offset >= below}
    assert set(copied) == offsets
