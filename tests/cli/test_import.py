"""`kmirror import` as it is typed: what is shown, as a table and as JSON, and the exit status."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from kmirror.storage.filesystem import OsFileSystem
from tests.cli.conftest import Run

SEGMENTS = Path(__file__).parents[1] / "storage" / "segments" / "4.4.0"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with two topics: `orders`, and `payments`, which lacks its partition 0."""
    for recorded, name in (("idem-0", "orders-0"), ("txn-0", "payments-1")):
        target = tmp_path / "kafka" / name
        target.mkdir(parents=True)
        for path in (SEGMENTS / recorded).iterdir():
            if not path.name.endswith(".dump.txt"):
                shutil.copy(path, target / path.name)
    return tmp_path / "kafka"


def files(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


def test_what_is_shown(run: Run, source: Path, tmp_path: Path) -> None:
    ran = run("import", source, "--data-dir", tmp_path / "data")
    assert ran.status == 1
    lines = ran.out.splitlines()
    assert lines[0].split() == ["TOPIC", "ID", "PARTITIONS", "OFFSETS", "BYTES", "STATUS"]
    assert lines[1].split()[0::2] == ["orders", "1", "921"] and lines[1].split()[-1] == "imported"
    assert lines[2].split()[0] == "payments" and lines[2].split()[-1] == "refused"
    assert "refused: payments: it has 2 partitions, and these are missing: 0." in ran.err
    assert "settings of 1 topics are not known (orders)" in ran.err
    assert "no __cluster_metadata-0" in ran.err


def test_all_is_well(run: Run, source: Path, tmp_path: Path) -> None:
    before = files(source)
    ran = run("import", source, "--data-dir", tmp_path / "data", "--topics", "ord.*", "--set", "orders:retention.ms=7")
    assert ran.status == 0
    assert "imported" in ran.out and "payments" not in ran.out
    assert files(source) == before
    again = run("import", source, "--data-dir", tmp_path / "data", "--topics", "orders")
    assert again.status == 1
    assert "the destination has it already, with the same topic id" in again.err


def test_json(run: Run, source: Path, tmp_path: Path) -> None:
    arguments = ("import", source, "--data-dir", tmp_path / "data", "--json", "--set", "orders:cleanup.policy=compact")
    planned = run(*arguments, "--dry-run")
    done = run(*arguments)
    assert (planned.status, done.status) == (1, 1)
    before, after = json.loads(planned.out), json.loads(done.out)
    orders, payments = after["topics"]
    assert orders == {
        "topic": "orders",
        "topic_id": "MYRB8bkwSu2TG8YmYgleBg",
        "partitions": 1,
        "offsets": 13,
        "bytes": 921,
        "status": "imported",
        "configs": {"retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "compact"},
        "settings_known": False,
        "reason": None,
        "notes": [],
    }
    assert (payments["status"], payments["offsets"], payments["partitions"]) == ("refused", None, None)
    assert [row["status"] for row in before["topics"]] == ["planned", "refused"]
    assert before["dry_run"] and not after["dry_run"]
    assert before["topics"][1] == payments


def test_a_dry_run_makes_nothing(run: Run, source: Path, tmp_path: Path) -> None:
    before = files(tmp_path)
    ran = run("import", source, "--data-dir", tmp_path / "data", "--dry-run")
    assert "would be imported" in ran.out
    assert files(tmp_path) == before and not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--set", "orders"], "write TOPIC:KEY=VALUE"),
        (["--set", "orders:=1"], "write TOPIC:KEY=VALUE"),
        (["--set", "other:retention.ms=1"], "no such topic is imported"),
        (["--set", "orders:retention.msx=1"], "did you mean retention.ms?"),
        (["--topics", "or(ders"], "--topics"),
        (["--topics", ","], "no name is given"),
    ],
)
def test_usage(run: Run, source: Path, tmp_path: Path, arguments: list[str], said: str) -> None:
    for more in ([], ["--dry-run"]):
        ran = run("import", source, "--data-dir", tmp_path / "data", *arguments, *more)
        assert ran.status == 2
        assert said in ran.err


def test_a_name_that_nothing_matches(run: Run, source: Path, tmp_path: Path) -> None:
    ran = run("import", source, "--data-dir", tmp_path / "data", "--topics", "orders,order")
    assert ran.status == 1
    assert "--topics order: no topic in there matches" in ran.err
    assert "imported" in ran.out


def test_a_link_to_nowhere_costs_its_topic(run: Run, source: Path, tmp_path: Path) -> None:
    (source / "orders-0" / f"{99:020d}.log").symlink_to(tmp_path / "nowhere")
    for more in (["--dry-run"], []):
        ran = run("import", source, "--data-dir", tmp_path / "data", *more)
        assert ran.status == 1
        assert f"refused: orders: {source}/orders-0/{99:020d}.log cannot be read: No such file" in ran.err


def test_a_file_for_a_data_directory(run: Run, source: Path, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"")
    for more in (["--dry-run"], []):
        ran = run("import", source, "--data-dir", tmp_path / "data", *more)
        assert ran.status == 2 and "cannot be used as the data directory" in ran.err


def test_settings_that_were_given_are_not_called_unknown(run: Run, source: Path, tmp_path: Path) -> None:
    ran = run("import", source, "--data-dir", tmp_path / "data", "--set", "orders:retention.ms=7")
    assert "are not known" not in ran.err


def test_directories_that_are_none_or_in_use(run: Run, source: Path, tmp_path: Path) -> None:
    for place, said in ((tmp_path / "nowhere", "not a directory"), (source / "orders-0", "is a partition directory")):
        ran = run("import", place, "--data-dir", tmp_path / "data")
        assert ran.status == 2 and said in ran.err
    (source / ".lock").write_bytes(b"")
    held = OsFileSystem().lock(str(source / ".lock"))
    ran = run("import", source, "--data-dir", tmp_path / "data")
    assert ran.status == 2 and "running broker: stop it first" in ran.err
    held.release()
    (tmp_path / "data").mkdir(exist_ok=True)
    held = OsFileSystem().lock(str(tmp_path / "data" / ".lock"))
    ran = run("import", source, "--data-dir", tmp_path / "data")
    assert ran.status == 2 and "held by another process" in ran.err
    held.release()
    (tmp_path / "link").symlink_to(tmp_path / "data")
    ran = run("import", tmp_path / "link", "--data-dir", tmp_path / "data")
    assert ran.status == 2 and "is the data directory" in ran.err
