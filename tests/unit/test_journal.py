"""What a process keeps of records that the broker has not heard, found by those that start after it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from services.adapters.journal import DirectoryJournal
from services.ports import OutRecord

RECORD = OutRecord("results", b"task", b'{"\xff": 1}', [("type", b"AttemptStarted"), ("x", b"\x00\n")], 3)
_KEEP_AND_DIE = """
import os, signal, sys
from pathlib import Path
from services.adapters.journal import DirectoryJournal
from tests.unit.test_journal import RECORD

journal = DirectoryJournal(Path(sys.argv[1]))
for name in ("a", "b"):
    journal.keep(name, RECORD)
os.kill(os.getpid(), signal.SIGKILL)
"""


def killed_after_keeping(directory: Path) -> None:
    """Another process keeps two records and is killed."""
    subprocess.run([sys.executable, "-c", _KEEP_AND_DIE, str(directory)], check=False)


def test_what_a_killed_process_kept_is_found_once_and_forgotten_when_it_is_said(tmp_path: Path) -> None:
    killed_after_keeping(tmp_path)
    first, second = DirectoryJournal(tmp_path), DirectoryJournal(tmp_path)
    (left,) = first.left_behind()
    assert list(left.records) == [RECORD, RECORD]
    assert list(second.left_behind()) == []  # the first one is at it
    left.forget()
    assert list(tmp_path.iterdir()) == []


def test_what_its_finder_did_not_say_is_found_by_the_next(tmp_path: Path) -> None:
    killed_after_keeping(tmp_path)
    script = "import sys; from pathlib import Path; from services.adapters.journal import DirectoryJournal;"
    script += "print(len(list(DirectoryJournal(Path(sys.argv[1])).left_behind())))"
    found = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, capture_output=True)
    assert found.stdout.strip() == b"1"
    assert len(list(DirectoryJournal(tmp_path).left_behind())) == 1


def test_nobody_takes_what_a_living_process_keeps(tmp_path: Path) -> None:
    living = DirectoryJournal(tmp_path)
    living.keep("a", RECORD)
    assert list(DirectoryJournal(tmp_path).left_behind()) == []
    assert list(living.left_behind()) == []


def test_what_was_heard_after_all_is_not_left_behind(tmp_path: Path) -> None:
    journal = DirectoryJournal(tmp_path)
    journal.heard("never kept")
    for name in ("a", "b"):
        journal.keep(name, RECORD)
    (file,) = tmp_path.iterdir()
    journal.heard("a")
    assert file.stat().st_size > 0
    journal.close()
    assert file.exists()  # "b" is for the next one
    journal.heard("b")
    assert file.stat().st_size == 0
    journal.close()
    assert list(tmp_path.iterdir()) == []


def test_what_was_heard_long_ago_is_not_kept_for_ever(tmp_path: Path) -> None:
    """Also where something always waits: the log is slow, and never empty."""
    journal = DirectoryJournal(tmp_path)
    for number in range(3_000):
        journal.keep(str(number), RECORD)
        journal.heard(str(number - 1))
    (file,) = tmp_path.iterdir()
    assert file.read_bytes().count(b"results") <= 1_025
    assert file.read_bytes().count(b"results") >= 1


def test_a_line_cut_by_death_costs_that_line(tmp_path: Path) -> None:
    killed_after_keeping(tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-20])
    (left,) = DirectoryJournal(tmp_path).left_behind()
    assert list(left.records) == [RECORD]


def test_a_directory_that_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    taken = tmp_path / "journal"
    taken.write_text("a file")
    journal = DirectoryJournal(taken)
    journal.keep("a", RECORD)
    journal.heard("a")
    assert list(journal.left_behind()) == []
