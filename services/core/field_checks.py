"""Checks of single JSON fields: what was expected instead, as a value with the path of the fault."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not taken: fit for the caller, never with the value that was sent."""

    message: str
    param: str | None = None
    code: str = "invalid_value"


Check = Callable[[Any, str], Refusal | None]


def expected(path: str, what: str) -> Refusal:
    return Refusal(f"Invalid '{path}': expected {what}.", path)


def missing(path: str, what: str) -> Refusal:
    return Refusal(
        f"Missing required parameter '{path}': expected {what}.", path, "missing_required_parameter"
    )


def is_whole(value: Any) -> bool:
    """An integer that is no boolean: JSON's `true` is an int to Python."""
    return isinstance(value, int) and not isinstance(value, bool)


def deeper_than(levels: int, value: Any) -> bool:
    """Whether lists and objects are nested in more than `levels` levels; never by recursion."""
    level = [value]
    for _ in range(levels):
        level = [part for item in level for part in _parts(item)]
        if not level:
            return False
    return any(isinstance(item, (dict, list)) for item in level)


def _parts(item: Any) -> list[Any]:
    """The lists and objects right within a list or an object."""
    inner = item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
    return [part for part in inner if isinstance(part, (dict, list))]


def whole(low: int, high: int | None = None) -> Check:
    what = f"a whole number of at least {low}" if high is None else f"a whole number from {low} to {high}"

    def check(value: Any, path: str) -> Refusal | None:
        good = is_whole(value) and low <= value and (high is None or value <= high)
        return None if good else expected(path, what)

    return check


def number(low: float, high: float) -> Check:
    def check(value: Any, path: str) -> Refusal | None:
        good = isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high
        return None if good else expected(path, f"a number from {low:g} to {high:g}")

    return check


def text(longest: int | None = None, *, shortest: int = 0) -> Check:
    what = "a string" if longest is None else f"a string of {shortest} to {longest} characters"

    def check(value: Any, path: str) -> Refusal | None:
        good = (
            isinstance(value, str) and len(value) >= shortest and (longest is None or len(value) <= longest)
        )
        return None if good else expected(path, what)

    return check


def flag(value: Any, path: str) -> Refusal | None:
    return None if isinstance(value, bool) else expected(path, "true or false")


def an_object(value: Any, path: str) -> Refusal | None:
    return None if isinstance(value, dict) else expected(path, "an object")


def one_of(*words: str) -> Check:
    allowed = frozenset(words)

    def check(value: Any, path: str) -> Refusal | None:
        good = isinstance(value, str) and value in allowed
        return None if good else expected(path, "one of " + ", ".join(words))

    return check


def text_or_texts(value: Any, path: str) -> Refusal | None:
    good = isinstance(value, str) or (
        isinstance(value, list) and all(isinstance(item, str) for item in value)
    )
    return None if good else expected(path, "a string or a list of strings")


def objects(each: Check, *, least: int = 0) -> Check:
    """A list of objects, each of which passes `each` under its own path."""

    def check(value: Any, path: str) -> Refusal | None:
        if not isinstance(value, list) or len(value) < least:
            return expected(path, "a list of objects" + (" that is not empty" if least else ""))
        for position, item in enumerate(value):
            item_path = f"{path}[{position}]"
            fault = an_object(item, item_path) or each(item, item_path)
            if fault is not None:
                return fault
        return None

    return check


def numbers_by_name(low: float, high: float) -> Check:
    each = number(low, high)

    def check(value: Any, path: str) -> Refusal | None:
        if not isinstance(value, dict):
            return expected(path, "an object of numbers")
        return next((fault for item in value.values() if (fault := each(item, path))), None)

    return check


def first_fault(body: Mapping[str, Any], checks: Mapping[str, Check], path: str = "") -> Refusal | None:
    """The first known field that is wrong; absent and null ones are the backend's to default."""
    for name, value in body.items():
        check = checks.get(name)
        if check is not None and value is not None:
            fault = check(value, path + name)
            if fault is not None:
                return fault
    return None
