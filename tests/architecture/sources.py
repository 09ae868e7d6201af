"""The project's own files as tests of its shape see them: what git would commit, read as text or syntax."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("services", "schemas", "infra", "loadtest")


@cache
def files() -> tuple[Path, ...]:
    """Tracked files and those that an `add` would track, relative to the root."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],  # noqa: S607 - git of the PATH
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    names = {name.decode() for name in listed.stdout.split(b"\0") if name}
    return tuple(sorted(path for name in names if (ROOT / (path := Path(name))).is_file()))


def python_files(*folders: str) -> list[Path]:
    """Python files below the named top folders."""
    return [path for path in files() if path.suffix == ".py" and path.parts[0] in folders]


def text(path: Path) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def nodes(path: Path) -> Iterator[ast.AST]:
    return ast.walk(ast.parse(text(path), str(path)))
