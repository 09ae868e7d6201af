"""When a broker counts as up: the port is open, it answers a metadata request, and its group coordinators are
loaded. The port alone is open seconds before the others."""

import asyncio
import socket

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from infra.process import ChildProcess

_PAUSE_S = 0.05
_REQUEST_TIMEOUT_MS = 5000

# A group lives in partition `hash(id) mod 4` of the offsets topic (infra/kafka/settings.py makes four).
# Java's hashes of these differ by one each, so together they ask the coordinator of every partition.
_PROBE_GROUPS = tuple(f"chimera-ready-{digit}" for digit in range(4))
_PROBE_PARTITION = TopicPartition("chimera-ready", 0)


async def until_ready(child: ChildProcess, bootstrap_servers: str, timeout_s: float) -> None:
    """Return when the broker that `child` runs serves; ProcessFailedError when it ends first or `timeout_s`
    passes, with the last reason and its log."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    reason = "not asked yet"
    while loop.time() < deadline:
        if not child.running:
            raise child.failure("ended while starting")
        found = await _why_not_ready(bootstrap_servers)
        if found is None:
            return
        reason = found
        await asyncio.sleep(_PAUSE_S)
    raise child.failure(f"not ready after {timeout_s:.0f} s: {reason}")


async def _why_not_ready(bootstrap_servers: str) -> str | None:
    if not _port_open(bootstrap_servers):  # asked first: aiokafka logs an error for every refused connection
        return f"nothing listens on {bootstrap_servers}"
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap_servers, request_timeout_ms=_REQUEST_TIMEOUT_MS)
    try:
        await admin.start()
        cluster = await admin.describe_cluster()
        if not cluster["brokers"]:
            return "its metadata names no broker"
        return await _unloaded_coordinator(admin)
    except (KafkaError, OSError, TimeoutError) as error:
        return repr(error)
    finally:
        await admin.close()


def _port_open(bootstrap_servers: str) -> bool:
    host, _, port = bootstrap_servers.rpartition(":")
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((host, int(port))) == 0


async def _unloaded_coordinator(admin: AIOKafkaAdminClient) -> str | None:
    # Asked for committed offsets, which creates no group: aiokafka 0.14 cannot decode any broker's answer to
    # DescribeGroups. A coordinator that still loads answers without the partition.
    for group in _PROBE_GROUPS:
        offsets = await admin.list_consumer_group_offsets(group, partitions=[_PROBE_PARTITION])
        if _PROBE_PARTITION not in offsets:
            return f"the coordinator of {group} is loading"
    return None
