"""What the services need from the outside, as Protocols. Adapters implement them, fakes pass the same suite.

Errors: an adapter translates its library's errors once, into the ones named here.
"""

from services.ports.backends import (
    BackendLook,
    Connections,
    MetricsAbsent,
    Presence,
)
from services.ports.bus import (
    Assigned,
    AssignmentListener,
    BusError,
    Commit,
    CommitRefused,
    GroupSource,
    InRecord,
    LogReader,
    OutRecord,
    Publisher,
    RecordTooLargeError,
    StartAt,
)
from services.ports.clock import (
    Clock,
    RandomUnit,
)
from services.ports.journal import (
    Journal,
    LeftBehind,
)
from services.ports.models import (
    BackendFault,
    ModelCall,
    ModelClient,
)
from services.ports.stores import (
    BlobStore,
    BookkeeperStore,
    IdempotencyStore,
    KeyRow,
    RowsRefused,
    StoredOutcome,
    StoreError,
)

__all__ = [
    "Assigned",
    "AssignmentListener",
    "BackendFault",
    "BackendLook",
    "BlobStore",
    "BookkeeperStore",
    "BusError",
    "Clock",
    "Commit",
    "CommitRefused",
    "Connections",
    "GroupSource",
    "IdempotencyStore",
    "InRecord",
    "Journal",
    "KeyRow",
    "LeftBehind",
    "LogReader",
    "MetricsAbsent",
    "ModelCall",
    "ModelClient",
    "OutRecord",
    "Presence",
    "Publisher",
    "RandomUnit",
    "RecordTooLargeError",
    "RowsRefused",
    "StartAt",
    "StoreError",
    "StoredOutcome",
]
