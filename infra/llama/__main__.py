"""`python -m infra.llama`: one model server in this process, on loopback, until SIGTERM or SIGINT."""

import argparse
import signal
import sys
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from infra.llama.settings import LlamaSettings
from infra.llama.weights import LocalModelMissingError, chat_template, require_runtime, weights_path

EXIT_MISSING = 3
# Waiting requests hold a thread of the HTTP server each; without spare ones /health would wait behind them.
_SPARE_HTTP_THREADS = 8


def main(argv: list[str] | None = None) -> int:
    """Exit codes: 0 after SIGTERM or SIGINT, 2 bad arguments, 3 runtime or weights missing."""
    args = _parse(argv)
    try:
        settings = _settings(args)
        require_runtime()
        weights = weights_path(settings.model)
    except (LocalModelMissingError, ValueError) as error:
        sys.stderr.write(f"infra.llama: {error}\n")
        return EXIT_MISSING if isinstance(error, LocalModelMissingError) else 2
    _serve(settings, weights, args.port, args.port_file)
    return 0


def _parse(argv: list[str] | None) -> argparse.Namespace:
    default = LlamaSettings()
    parser = argparse.ArgumentParser(prog="python -m infra.llama", description=__doc__)
    parser.add_argument("--model", default=default.model, help="smollm2, or a path to a .gguf file")
    parser.add_argument("--alias", default=default.alias, help="the model's name in the API")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--port-file", type=Path, help="the port is written here once the server answers")
    parser.add_argument("--threads", type=int, default=default.threads)
    parser.add_argument("--slots", type=int, default=default.slots)
    parser.add_argument("--context-per-slot", type=int, default=default.context_per_slot, help="tokens")
    parser.add_argument("--batch-tokens", type=int, default=default.batch_tokens)
    parser.add_argument("--embeddings", action="store_true", help="serve /v1/embeddings too")
    return parser.parse_args(argv)


def _settings(args: argparse.Namespace) -> LlamaSettings:
    return LlamaSettings(
        model=args.model,
        alias=args.alias,
        threads=args.threads,
        slots=args.slots,
        context_per_slot=args.context_per_slot,
        batch_tokens=args.batch_tokens,
        embeddings=args.embeddings,
    )


def _params(settings: LlamaSettings, weights: Path, port: int) -> Any:
    # A library of 100 MB: loaded only once weights are there.
    from xllamacpp import CommonParams, llama_pooling_type  # noqa: PLC0415 - as said above

    params = CommonParams()
    params.model.path = str(weights)
    params.model_alias = {settings.alias}
    params.hostnames = ["127.0.0.1"]
    params.port = port
    params.n_parallel = settings.slots
    params.n_ctx = settings.slots * settings.context_per_slot
    params.n_batch = params.n_ubatch = settings.batch_tokens
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = settings.threads
    params.n_threads_http = settings.slots + _SPARE_HTTP_THREADS
    params.endpoint_metrics = params.endpoint_slots = True
    params.ui = False
    params.cors_origins = ""
    params.cache_ram_mib = 0
    params.fit_params = False  # what was asked for, not what the loader thinks fits
    if settings.embeddings:
        params.embedding = True
        params.pooling_type = llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    template = chat_template(settings.model)
    if template is not None:
        params.chat_template = template
    return params


def _serve(settings: LlamaSettings, weights: Path, port: int, port_file: Path | None) -> None:
    from xllamacpp import Server  # noqa: PLC0415 - see _params

    # Until here the signals' default ends the process at once: there is nothing to finish while it loads.
    server = Server(_params(settings, weights, port))
    stopping = threading.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: stopping.set())
    if port_file is not None:
        _write_atomically(port_file, str(urlsplit(server.listening_address).port))
    stopping.wait()
    del server  # joins its threads; open streams end without [DONE]


def _write_atomically(path: Path, text: str) -> None:
    part = path.with_name(f"{path.name}.part")
    part.write_text(text, encoding="ascii")
    part.replace(path)


if __name__ == "__main__":
    raise SystemExit(main())
