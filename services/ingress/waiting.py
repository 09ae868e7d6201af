"""A request while it waits: its listener, its place in the load, the watch on its client."""

from __future__ import annotations

import asyncio
import time

import structlog
from starlette.types import Receive

from schemas.messages import CloseReason, TaskClosed, TaskFailed, TaskSucceeded
from services.ingress.call import Call
from services.ingress.dispatch import Dispatcher, NotAccepted
from services.ingress.errors import ApiError, unavailable
from services.ingress.fleet_load import Lane
from services.ingress.inbox import Inbox, Listener

_log = structlog.get_logger("chimera.ingress")
Terminal = TaskSucceeded | TaskFailed | TaskClosed


async def watch_client(receive: Receive, listener: Listener) -> None:
    """Tells the listener when the client has hung up."""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            listener.hang_up()
            return


class Waiting:
    """Taken before the task is sent; `release` gives everything back, on every path, once."""

    def __init__(
        self, call: Call, lane: Lane, inbox: Inbox, dispatcher: Dispatcher, receive: Receive
    ) -> None:
        self.call = call
        self.listener = Listener(streaming=call.streaming)
        self._lane = lane
        self._inbox = inbox
        self._dispatcher = dispatcher
        self.worker: str | None = None
        self._held = True
        self._open = False  # the broker may have the task, and nobody has closed it
        inbox.register(call.task_id, self.listener)
        dispatcher.load.take(call.pool.name, lane)
        self._watch = asyncio.create_task(watch_client(receive, self.listener))

    def follow(self, worker: str) -> None:
        """The stream has content of an attempt of this worker."""
        self.worker = worker
        self._inbox.bound.add(worker, self.listener)

    async def send(self) -> None:
        """Sends the task. Raises NotAccepted, unless its outcome has been read before the acknowledgement.

        Raises ApiError where a large body cannot be stored: nothing is sent then.
        """
        try:
            body = await self._dispatcher.payload(self.call.raw)
        except OSError as fault:
            _log.warning("body not stored", task_id=self.call.task_id, error=str(fault))
            raise unavailable(
                "Large bodies need the blob store, which takes none.", "store_unavailable"
            ) from None
        self._open = True
        try:
            await self._dispatcher.send(self.call, body, self._lane)
        except NotAccepted:
            if not any(isinstance(message, Terminal) for message in self.listener.news):
                raise

    def leave(self) -> None:
        """The client is gone."""
        self.call.record.status = "cancelled"
        self.disown()

    def interrupt(self) -> None:
        self._close("interrupted")

    def abandon(self) -> ApiError:
        """The service ends before the answer came."""
        self.disown()
        self.call.record.reason = "shutting_down"
        return unavailable("This replica is shutting down.", "shutting_down")

    def disown(self) -> None:
        """Nobody waits any more: a task without a key is of use to nobody."""
        if self.call.key is None:
            self._close("cancelled")

    def release(self) -> None:
        if self._held:
            self._held = False
            if self._open and self.listener.decided is None and not self._is_overdue():
                self.disown()  # whatever broke off the wait, the model must not run on
            self.call.record.decided = self.listener.decided
            self._watch.cancel()
            if self.worker is not None:
                self._inbox.bound.remove(self.worker, self.listener)
            self._inbox.forget(self.call.task_id)
            self._dispatcher.load.release(self.call.pool.name, self._lane)

    def _is_overdue(self) -> bool:
        """Past its deadline every worker stops by itself."""
        return time.time() * 1000 >= self.call.deadline_ms

    def _close(self, reason: CloseReason) -> None:
        self._open = False
        self._dispatcher.closes.soon(self.call.unwanted(), reason)
