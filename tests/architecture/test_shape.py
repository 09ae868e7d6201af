"""How this code must look: sizes, names, and no check that is silenced without a reason."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.architecture.sources import PRODUCT, files, nodes, python_files, text

MAX_FILE_LINES = 299
MAX_FUNCTION_LINES = 40
EMPTY_WORDS = {
    "util", "utils", "helper", "helpers", "manager", "managers", "base", "common", "misc",
}  # fmt: skip
SILENCED = re.compile(
    r"#\s*(?:noqa(?P<codes>:\s*[A-Z]+\d+(?:,\s*[A-Z]+\d+)*)?|type:\s*ignore(?P<kind>\[[\w-]+\])?)(?P<rest>.*)"
)
MAX_COMMITTED_BYTES = 512 * 1024
DATA_SUFFIXES = {".gz", ".csv", ".jsonl", ".parquet", ".gguf", ".jar", ".whl", ".db", ".zip", ".tar"}


def _words(name: str) -> set[str]:
    parts = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    return set(re.split(r"[_.\-]+", parts))


def _functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in nodes(path) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def test_no_file_of_the_product_holds_two_ideas() -> None:
    lengths = {str(path): len(text(path).splitlines()) for path in python_files(*PRODUCT)}
    assert len(lengths) > 100  # the listing sees the product
    assert {path: lines for path, lines in lengths.items() if lines > MAX_FILE_LINES} == {}


def test_no_test_file_grows_beyond_reading_either() -> None:
    lengths = {str(path): len(text(path).splitlines()) for path in python_files("tests")}
    assert {path: lines for path, lines in lengths.items() if lines > MAX_FILE_LINES} == {}


def test_no_function_is_longer_than_a_screen() -> None:
    longer = {
        f"{path}:{function.lineno} {function.name}": lines
        for path in python_files(*PRODUCT, "tests")
        for function in _functions(path)
        if (lines := (function.end_lineno or 0) - function.lineno + 1) > MAX_FUNCTION_LINES
    }
    assert longer == {}


def test_no_file_folder_or_class_has_a_name_that_says_nothing() -> None:
    paths = {
        str(path) for path in files() for part in path.with_suffix("").parts if _words(part) & EMPTY_WORDS
    }
    classes = {
        f"{path}: {node.name}"
        for path in python_files(*PRODUCT, "tests")
        for node in nodes(path)
        if isinstance(node, ast.ClassDef) and _words(node.name) & EMPTY_WORDS
    }
    assert paths | classes == set()


def test_a_silenced_check_names_what_it_silences_and_why() -> None:
    bare = []
    for path in python_files(*PRODUCT, "tests"):
        for number, line in enumerate(text(path).splitlines(), 1):
            found = SILENCED.search(line)
            if found is None or "SILENCED" in line:
                continue
            reason = re.search(r"[A-Za-z]{2,}", found["rest"])
            if reason is None or not (found["codes"] or found["kind"]):
                bare.append(f"{path}:{number}: {line.strip()}")
    assert bare == []


def test_ignored_lint_rules_carry_their_reason() -> None:
    listed = re.search(r"^ignore = \[\n(.*?)^\]", text(Path("pyproject.toml")), re.MULTILINE | re.DOTALL)
    assert listed is not None
    lines = [line for line in listed[1].splitlines() if line.strip()]
    assert lines
    assert [line for line in lines if not re.search(r"#\s*\w+", line)] == []


def test_nothing_but_source_is_committed() -> None:
    """Data sets, weights, jars and databases come from where they live; none of them belongs here."""
    data = [str(path) for path in files() if path.suffix in DATA_SUFFIXES]
    large = [str(path) for path in files() if len(text(path).encode()) > MAX_COMMITTED_BYTES]
    assert data + large == []
