"""What one long task went through, and where that is not what was promised."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Others:
    """The batch work beside it: calls sent and answered, and those that were tried more than once."""

    sent: int
    answered: int
    twice: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LongReport:
    """`seconds` as its client waited. `rows` of the ledger; `outcomes` are terminal records in log order."""

    seconds: float
    whole: bool
    attempts: int
    rows: int
    outcomes: tuple[str, ...]
    rebalances: int
    parked: int
    renewals: int
    one_attempt: bool
    others: Others
    fault: str = ""

    def lines(self) -> list[str]:
        return [
            f"the task took {self.seconds:.1f} s, its answer is {'whole' if self.whole else 'NOT whole'}"
            + (f" ({self.fault})" if self.fault else ""),
            f"attempts at the model server {self.attempts}, ledger rows {self.rows}",
            f"outcome {', '.join(self.outcomes) or 'none'}",
            f"rebalances {self.rebalances}, parked rows {self.parked}, renewals {self.renewals}",
            f"beside it: {self.others.sent} batch calls, {self.others.answered} answered",
            *(f"  done twice: {words}" for words in self.others.twice),
            f"breaches: {len(self.breaches())}",
            *self.breaches(),
        ]

    def breaches(self) -> list[str]:
        """Empty where the task ran once, beside two rebalances at least, and all else was done once too."""
        others = self.others
        checks = {
            "the answer is not whole": self.whole,
            "the task was tried more than once": self.attempts == 1 and self.one_attempt,
            "the ledger has not one row of it": self.rows == 1,
            "it has not one outcome, a success": self.outcomes == ("TaskSucceeded",),
            "fewer than two rebalances were seen": self.rebalances >= 2,
            "no parked row held it, or none was renewed": self.parked >= 1 and self.renewals >= 1,
            "other work was lost": others.sent == others.answered > 0,
            "other work was done twice": not others.twice,
        }
        return [words for words, kept in checks.items() if not kept]
