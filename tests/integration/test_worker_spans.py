"""The spans of a try end with it, however it ends."""

from __future__ import annotations

from pathlib import Path

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from loadtest.model_server.process import ModelServerProcess
from services.worker_pools.try_spans import TrySpans
from tests.integration.worker_rig import openai_rig, scripted


async def test_the_spans_of_a_try_that_was_cut_off_end_as_failed(tmp_path: Path) -> None:
    exported, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exported))
    async with ModelServerProcess(chunks=4) as server, openai_rig(server.root_url, tmp_path) as rig:
        running = await rig.work()
        running.worker._crew.serving._spans = TrySpans(provider)
        await rig.end(await rig.submit())
        whole = exported.get_finished_spans()
        assert [span.status.status_code for span in whole] == [StatusCode.UNSET] * 2
        assert all((span.attributes or {})["gen_ai.usage.output_tokens"] for span in whole)
        exported.clear()
        await rig.started(await rig.submit(scripted(hang_after_chunks=1)))
        await running.kill(rig.bus)
        cut_off = exported.get_finished_spans()
        assert [span.status.status_code for span in cut_off] == [StatusCode.ERROR] * 2
    provider.shutdown()
