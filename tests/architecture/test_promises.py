"""What README, lock files, contract documents, compose file and the list of faults say is so."""

from __future__ import annotations

import ast
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from services.cli.__main__ import app
from services.cli.first_question import curl_text
from services.cli.schemas import check as check_documents
from tests.architecture.sources import ROOT, nodes, python_files, text

LOCKS = (Path("requirements.lock"), Path("requirements-services.lock"))
# Faults that users of such systems reported; each is provoked by a test that carries its id in its name.
FAULTS = (
    *("s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8"),
    *("q1", "q3", "q4", "q5", "q6", "q7", "q8", "q9", "q12"),
    *("r1", "r2", "o3"),
)


def _readme_blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text(Path("README.md")), re.MULTILINE | re.DOTALL)


def _readme_commands() -> list[list[str]]:
    """Each shell line of the README as words, without its comment; `a|b|c` becomes one command for each."""
    spoken = re.findall(r"`((?:make|chimera) [^`]+)`", text(Path("README.md")))
    lines = "".join(_readme_blocks("sh")).replace("\\\n", " ").splitlines()
    commands: list[list[str]] = []
    for line in [*lines, *spoken]:
        words = shlex.split(line.replace("\\|", "|"), comments=True)
        choices = next((word.split("|") for word in words if "|" in word), [""])
        commands += [[choice if "|" in word else word for word in words] for choice in choices]
    return [words for words in commands if words]


@pytest.mark.parametrize("words", _readme_commands(), ids=" ".join)
def test_every_command_of_the_readme_exists(words: list[str]) -> None:
    program, arguments = Path(words[0]).name, words[1:]
    if program == "make":
        targets = re.findall(r"^([a-z]+):", text(Path("Makefile")), re.MULTILINE)
        variables = re.findall(r"^([A-Z]+)\s*\?=", text(Path("Makefile")), re.MULTILINE)
        assert {word for word in arguments if "=" not in word} <= set(targets)
        assert {word.partition("=")[0] for word in arguments if "=" in word} <= set(variables)
    elif program == "chimera":
        _parses(arguments)
    else:
        assert program in {"curl", "docker"}
    missing = [word for word in arguments if word.endswith(".yaml") and not (ROOT / word).is_file()]
    assert missing == []


def _parses(arguments: list[str]) -> None:
    """Understood by the command line, without being run."""
    app.parse_args(arguments, print_error=False, exit_on_error=False)


def test_the_curl_of_the_readme_is_the_one_that_the_fleet_prints() -> None:
    blocks = [re.sub(r"\s*\\\n\s*", " ", block).strip() for block in _readme_blocks("sh")]
    assert curl_text("http://127.0.0.1:8080") in blocks


def test_python_of_the_readme_compiles() -> None:
    blocks = _readme_blocks("python")
    assert blocks
    for block in blocks:
        ast.parse(block)


def test_lock_files_name_no_address() -> None:
    for lock in LOCKS:
        assert "://" not in text(lock)


@pytest.mark.parametrize("lock", LOCKS, ids=str)
def test_every_locked_package_has_its_hashes(lock: Path) -> None:
    entries = re.split(r"^(?=[A-Za-z0-9])", text(lock), flags=re.MULTILINE)[1:]
    assert len(entries) > 20
    unpinned = [entry.splitlines()[0] for entry in entries if not re.match(r"[\w.\-]+(\[[\w,]+\])?==", entry)]
    bare = [entry.splitlines()[0] for entry in entries if "--hash=sha256:" not in entry]
    assert unpinned + bare == []


def test_the_services_run_on_what_the_tests_run_on() -> None:
    def pins(lock: Path) -> set[str]:
        return set(re.findall(r"^[\w.\-]+==[\w.\-+]+", text(lock), re.MULTILINE))

    tested, shipped = map(pins, LOCKS)
    assert shipped
    assert shipped - tested == set()


def test_the_documents_of_the_contract_are_what_the_models_say() -> None:
    check_documents(ROOT / "schemas/generated")


def test_the_compose_file_is_valid() -> None:
    program = shutil.which("docker-compose")
    if program is None:
        pytest.skip("docker-compose is not on the PATH: the compose file is not checked here")
    done = subprocess.run(
        [program, "--file", str(ROOT / "docker-compose.yml"), "config", "-q"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("fault", FAULTS)
def test_every_known_fault_is_provoked_by_a_test_of_its_name(fault: str) -> None:
    wanted = re.compile(rf"test_(?:\w+_)?{fault}_")
    names = [
        node.name
        for path in python_files("tests")
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert [name for name in names if wanted.match(name)] != []
