"""What comes of one try as it comes: assembled into the whole answer, and passed on to a client that streams.

Frames without content (roles, keep-alives) are held back until something is said: until then another try can
take over unseen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from schemas.messages import Failure, RunTask, Usage
from services.core import answer_verdict, usage
from services.core.assembly import Assembly
from services.core.chunk_form import ChunkForm
from services.core.rewrite import EventRewriter, answer_id, only_progress, wants_usage
from services.worker_pools.chunk_sender import ChunkSender


class AnswerStream:
    """`sender` is None where nobody streams. `take` returns how many of the events had content."""

    def __init__(
        self, task: RunTask, body: Mapping[str, Any], model: str, created_s: int, sender: ChunkSender | None
    ) -> None:
        self._kind = task.kind
        self._created_s = created_s
        self._sender = sender
        self._waiting: list[dict[str, Any]] = []
        self._open = False
        n = body.get("n")
        self._assembly = Assembly(
            "chat" if task.kind == "chat" else "text",
            answer_id(task.kind, task.task_id),
            model,
            n if isinstance(n, int) and n > 0 else 1,
        )
        self._body = body
        self._form = ChunkForm(task.kind, task.task_id, body)
        self._usage_asked = wants_usage(body)
        self._rewriter = EventRewriter(
            task.kind, task.task_id, model, created_s, usage_asked=self._usage_asked
        )

    @property
    def chunks(self) -> int:
        return 0 if self._sender is None else self._sender.sent

    @property
    def has_content(self) -> bool:
        return self._assembly.has_content

    @property
    def streamed(self) -> bool:
        """Whether a client was given content."""
        return self._open

    def take(self, events: Sequence[dict[str, Any]]) -> int:
        """Raises MalformedChunkError; what came before stays."""
        content = 0
        for event in events:
            if only_progress(event, self._body):
                continue
            normal = self._form.normal(event)
            said = self._assembly.add(normal)
            content += said
            if self._sender is not None:
                self._pass_on(normal, said)
        if self._open and self._sender is not None and self._waiting:
            self._sender.add(self._waiting)
            self._waiting = []
        return content

    def _pass_on(self, event: dict[str, Any], said: bool) -> None:
        out = self._rewriter.event(event)
        if out is not None:
            self._waiting.append(out)
        if said:
            self._open = True

    def verdict(self) -> Failure | None:
        return answer_verdict.of_stream(self._assembly)

    def usage(self, prompt_bytes: int) -> Usage:
        assembly = self._assembly
        return usage.counted(
            assembly.usage, prompt_bytes=prompt_bytes, output_tokens=assembly.estimated_output_tokens
        )

    def end(self, counted: Usage, *, whole: bool) -> None:
        """Passes on what is left; after a whole answer with the usage, where it was asked for."""
        if self._sender is None:
            return
        if whole:
            self._open = True
            if self._usage_asked:
                self._waiting.append(self._rewriter.usage_event(self._shown(counted)))
        if self._open and self._waiting:
            self._sender.add(self._waiting)
            self._waiting = []
        self._sender.flush()

    def answer(self, counted: Usage) -> dict[str, Any]:
        """The whole OpenAI response, or what there is of it."""
        answer = self._assembly.answer(self._created_s)
        answer["usage"] = self._shown(counted)
        return answer

    def _shown(self, counted: Usage) -> dict[str, Any]:
        return usage.shown(self._assembly.usage, counted)
