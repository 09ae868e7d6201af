"""`python -m infra.kafka --port N --data-dir D`: one broker in the foreground until SIGTERM or Ctrl-C."""

import argparse
import asyncio
import sys
from pathlib import Path

from infra.kafka.jars import JarsUnavailableError
from infra.kafka.node import KafkaNode, available
from infra.process import ProcessFailedError, until_signalled

_WATCH_S = 0.5


async def _serve(node: KafkaNode) -> int:
    """Return 0 after a signal, 1 when the broker ended by itself."""
    signalled = asyncio.create_task(until_signalled())
    started = asyncio.create_task(node.start())
    try:
        await asyncio.wait({signalled, started}, return_when=asyncio.FIRST_COMPLETED)
        if not started.done():
            started.cancel()
            await asyncio.wait({started})
            return 0
        await started
        print(f"kafka {node.bootstrap_servers} pid {node.pid}", flush=True)
        while node.running and not signalled.done():
            await asyncio.wait({signalled}, timeout=_WATCH_S)
        return 0 if signalled.done() else 1
    finally:
        signalled.cancel()
        await node.stop()


def main() -> int:
    """Return the exit code: 0 after a signal, 1 when the broker failed, 2 when it cannot run here."""
    parser = argparse.ArgumentParser(prog="python -m infra.kafka", description=__doc__)
    parser.add_argument("--port", type=int, required=True, help="TCP port on 127.0.0.1")
    parser.add_argument("--data-dir", type=Path, required=True, help="kept over restarts; made if missing")
    parser.add_argument("--benchmark", action="store_true", help="full JIT and collector, 512 MiB heap")
    arguments = parser.parse_args()
    reason = available()
    if reason is not None:
        print(reason, file=sys.stderr)
        return 2
    node = KafkaNode.single(arguments.data_dir, port=arguments.port, benchmark=arguments.benchmark)
    try:
        return asyncio.run(_serve(node))
    except (JarsUnavailableError, ProcessFailedError) as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
