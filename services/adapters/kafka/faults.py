"""The library's errors, translated once: who calls aiokafka catches LIBRARY_FAULTS and raises BusError."""

from __future__ import annotations

from aiokafka.errors import ConsumerStoppedError, IllegalOperation, KafkaError, MessageSizeTooLargeError

from services.ports import BusError, RecordTooLargeError

# AssertionError: aiokafka asserts what it should refuse (an unknown partition, neither key nor value).
LIBRARY_FAULTS = (KafkaError, ConsumerStoppedError, IllegalOperation, OSError, TimeoutError, AssertionError)


def bus_error(what: str, fault: BaseException) -> BusError:
    """The BusError for `fault`: what was tried, then the library's own words on one line."""
    words = " ".join(str(fault).split())[:300]
    kind = type(fault).__name__
    ours = RecordTooLargeError if isinstance(fault, MessageSizeTooLargeError) else BusError
    return ours(f"{what}: {kind}: {words}" if words else f"{what}: {kind}")
