"""Which offsets above a partition's watermark are done, and how that survives in Kafka commit metadata.

Law: a map is read only with the offset it was written for, and one that cannot be read is empty. Forgetting
a done offset costs a second run of a task; inventing one would lose a task.

Written as `dm1p:<watermark>:<base64>` (plain bitmap, little-endian, bit i is watermark + i) or `dm1z:`
(the same through zlib, when that is shorter); an empty map is the empty string. A full span of 20,000 offsets
takes 3.4 kB of the 4,096 bytes that a broker accepts.
"""

import base64
import binascii
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

SPAN = 20_000
MAX_METADATA_BYTES = 4_096

_TAG = "dm"
_VERSION = "1"
_PAGE_BITS = 1_024
_PAGE_SHIFT = 10
_PAGE_MASK = _PAGE_BITS - 1
_SPAN_MASK = (1 << SPAN) - 1
_SPAN_BYTES = (SPAN + 7) // 8


class DoneSet:
    """A sparse set of offsets: pages of 1,024 bits, so a gap costs no memory. O(1) per operation."""

    __slots__ = ("_first_page", "_pages")

    def __init__(self, offsets: Iterable[int] = ()) -> None:
        self._pages: dict[int, int] = {}
        self._first_page = 0
        for offset in offsets:
            self.add(offset)

    @classmethod
    def from_bits(cls, start: int, bits: int) -> "DoneSet":
        """The set of start + i for each set bit i of `bits`."""
        made = cls()
        bits <<= start & _PAGE_MASK
        page = start >> _PAGE_SHIFT
        while bits:
            part = bits & ((1 << _PAGE_BITS) - 1)
            if part:
                made._pages[page] = part
            bits >>= _PAGE_BITS
            page += 1
        return made

    def bits(self, start: int) -> int:
        """Bit i is set when start + i is in the set, for i below the span; what lies beyond is left out."""
        if not self._pages:
            return 0
        first = start >> _PAGE_SHIFT
        last = (start + SPAN - 1) >> _PAGE_SHIFT
        pages = self._pages
        raw = b"".join(
            pages.get(page, 0).to_bytes(_PAGE_BITS // 8, "little") for page in range(first, last + 1)
        )
        return (int.from_bytes(raw, "little") >> (start & _PAGE_MASK)) & _SPAN_MASK

    def copy(self) -> "DoneSet":
        made = DoneSet()
        made._pages = self._pages.copy()
        made._first_page = self._first_page
        return made

    def add(self, offset: int) -> None:
        page = offset >> _PAGE_SHIFT
        self._pages[page] = self._pages.get(page, 0) | (1 << (offset & _PAGE_MASK))

    def drop_below(self, offset: int) -> None:
        """Let go of whole pages below `offset`; bits below it in its own page may stay."""
        page = offset >> _PAGE_SHIFT
        if page <= self._first_page:
            return
        self._first_page = page
        for old in [kept for kept in self._pages if kept < page]:
            del self._pages[old]

    def __contains__(self, offset: int) -> bool:
        return bool(self._pages.get(offset >> _PAGE_SHIFT, 0) >> (offset & _PAGE_MASK) & 1)

    def __iter__(self) -> Iterator[int]:
        for page in sorted(self._pages):
            bits = self._pages[page]
            while bits:
                lowest = bits & -bits
                yield (page << _PAGE_SHIFT) + lowest.bit_length() - 1
                bits ^= lowest

    def __bool__(self) -> bool:
        return bool(self._pages)


@dataclass(frozen=True, slots=True)
class Decoded:
    """What commit metadata said. `fault` is None, or why the map was taken as empty."""

    done: DoneSet
    fault: str | None = None


def encode(done: DoneSet, watermark: int) -> str:
    """The done offsets from `watermark` on, at most 4,096 ASCII bytes; those beyond the span are left out."""
    bits = done.bits(watermark)
    if not bits:
        return ""
    plain = bits.to_bytes((bits.bit_length() + 7) // 8, "little")
    kind, packed = "p", plain
    if len(plain) > 16:  # below that zlib's own frame is longer than what it could save
        squeezed = zlib.compress(plain, 1)
        if len(squeezed) < len(plain):
            kind, packed = "z", squeezed
    return f"{_TAG}{_VERSION}{kind}:{watermark}:{base64.b64encode(packed).decode('ascii')}"


def decode(metadata: str | None, watermark: int) -> Decoded:
    """Read what `encode` wrote for this committed offset. The unreadable is empty, with a fault."""
    if not metadata:
        return Decoded(DoneSet())
    head, _, rest = metadata.partition(":")
    written_for, _, body = rest.partition(":")
    fault = _fault_of_head(head, written_for, watermark)
    if fault is not None:
        return Decoded(DoneSet(), fault)
    try:
        packed = base64.b64decode(body.encode("ascii"), validate=True)
        plain = _inflate(packed) if head[-1] == "z" else packed
    except (binascii.Error, UnicodeEncodeError, zlib.error) as error:
        return Decoded(DoneSet(), f"damaged: {error}")
    if len(plain) > _SPAN_BYTES:
        return Decoded(DoneSet(), f"longer than the span of {SPAN} offsets")
    return Decoded(DoneSet.from_bits(watermark, int.from_bytes(plain, "little")))


def _fault_of_head(head: str, written_for: str, watermark: int) -> str | None:
    if not head.startswith(_TAG) or len(head) != len(_TAG) + 2:
        return "not a done-map"
    if head[-2] != _VERSION or head[-1] not in "pz":
        return f"unknown version {head[len(_TAG) :]!r}"
    if written_for != str(watermark):
        # A tool that moves an offset and keeps the metadata would otherwise mark the wrong records as done.
        return f"written for offset {written_for[:20]!r}, committed at {watermark}"
    return None


def _inflate(packed: bytes) -> bytes:
    """Bounded: a foreign body must not unpack into more than a span."""
    inflater = zlib.decompressobj()
    plain = inflater.decompress(packed, _SPAN_BYTES + 1)
    if len(plain) <= _SPAN_BYTES and not inflater.eof:
        raise zlib.error("truncated")
    return plain
