"""`kmirror dump --verify`: lines, table, JSON and exit status; and every kind of file that `kmirror dump` prints."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from kmirror.broker.metadata import METADATA_TOPIC
from kmirror.cli.dump_check import is_running
from kmirror.cli.file_formats import kind_of
from kmirror.storage.filesystem import OsFileSystem
from kmirror.storage.flush import Facts
from tests.cli.conftest import Run

SEGMENTS = Path(__file__).parents[1] / "storage" / "segments"
LOG = "00000000000000000000.log"
COLUMNS = ["DIRECTORY", "FILES", "BATCHES", "RECORDS", "BYTES", "DAMAGE", "STALE", "NOTES"]


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    copied = tmp_path / "data" / "txn-0"
    shutil.copytree(SEGMENTS / "4.4.0" / "txn-0", copied, ignore=shutil.ignore_patterns("*.dump.txt"))
    return copied


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def test_recorded_directories_are_sound(run: Run) -> None:
    for version in ("2.1.1", "4.4.0"):
        ran = run("dump", "--verify", SEGMENTS / version)
        assert (ran.status, ran.err) == (0, "")
        heading, total = ran.out.splitlines()
        assert heading.split() == COLUMNS
        assert total.split()[0] == "total" and total.split()[-3:] == ["0", "0", "0"]
        assert int(total.split()[3]) > 80


def test_damage_is_a_line_and_an_exit_status(run: Run, partition: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(partition.parent)
    flip(partition / LOG, 70)
    (partition / "00000000000000000003.snapshot").write_bytes(b"")
    ran = run("dump", "--verify", "txn-0")
    assert (ran.status, ran.err) == (1, "1 damaged\n")
    stale = "STALE txn-0/00000000000000000003.snapshot"
    assert ran.out.splitlines()[0].startswith(f"DAMAGE txn-0/{LOG} (offset 0, byte 0): batch at offset 0 has checksum")
    assert any(line.startswith(stale) for line in ran.out.splitlines())
    row = next(line.split() for line in ran.out.splitlines() if line.startswith("txn-0 "))
    assert row[-3:] == ["1", "1", "0"]
    assert run("dump", "--verify", f"txn-0/{LOG}").status == 1
    assert run("dump", "--verify", "txn-0/00000000000000000003.log").status == 0
    ran = run("dump", "--verify", "txn-0/00000000000000000003.snapshot")
    assert ran.status == 0 and ran.out.startswith(stale)


def test_json_is_a_document_a_line_and_a_summary(run: Run, partition: Path) -> None:
    flip(partition / LOG, 70)
    ran = run("dump", "--verify", "--json", partition.parent)
    assert ran.status == 1
    *findings, summary = map(json.loads, ran.out.splitlines())
    assert [(one["kind"], one["severity"], one["file"], one["offset"], one["position"]) for one in findings] == [
        ("finding", "damage", str(partition / LOG), 0, 0)
    ]
    assert {name: summary[name] for name in ("kind", "path", "damage", "stale", "notes", "running")} == {
        "kind": "summary",
        "path": str(partition.parent),
        "damage": 1,
        "stale": 0,
        "notes": 0,
        "running": False,
    }
    assert summary["batches"] == 14 and summary["files"] >= 9


def test_without_records_only_headers_and_checksums_are_looked_at(run: Run, partition: Path) -> None:
    ran = run("dump", "--verify", "--batches", "--json", partition)
    assert ran.status == 0
    assert json.loads(ran.out)["records"] == 21


def test_other_files_are_refused(run: Run, tmp_path: Path) -> None:
    other = tmp_path / "holiday.jpeg"
    other.write_bytes(b"x")
    for path in (other, tmp_path, tmp_path / "gone"):
        ran = run("dump", "--verify", path)
        assert ran.status == 2, ran
    assert "dissect" in run("dump", "--verify", other).err


def test_a_running_broker_is_noticed_and_not_disturbed(run: Run, partition: Path) -> None:
    """By the lock it holds, wherever the path points to; a lock file alone says nothing."""
    data = partition.parent
    lock = OsFileSystem().lock(str(data / ".lock"))
    whole = (partition / "00000000000000000003.log").read_bytes()
    (partition / "00000000000000000003.log").write_bytes(whole[:-5])
    for path in (data, partition, partition / LOG):
        assert is_running(path)
    ran = run("dump", "--verify", data)
    assert ran.status == 0
    assert "a broker is running" in ran.err
    assert "NOTE" in ran.out and "the broker is writing" in ran.out
    assert json.loads(run("dump", "--verify", "--json", data).out.splitlines()[-1])["running"] is True
    lock.release()
    assert not is_running(data)
    assert run("dump", "--verify", data).status == 1


# --- kinds of files -------------------------------------------------------------------------------------------------

KINDS = {
    "00000000000000000000.log": "log",
    "00000000000000000000.log.deleted": "log",
    "00000000000000000000.log.swap": "log",
    "00000000000000000000.log.cleaned": "log",
    "00000000000000000000.log.1a2b3c4d.cleaned": "log",
    "00000000000000000000.index": "offset index",
    "00000000000000000000.index.deleted": "offset index",
    "00000000000000000000.timeindex": "time index",
    "00000000000000000000.timeindex.1a2b3c4d.cleaned": "time index",
    "00000000000000000000.txnindex.swap": "transaction index",
    "00000000000000000000.snapshot": "producer snapshot",
    "00000000000000000000.snapshot.deleted": "producer snapshot",
    "00000000000000000007-0000000001.checkpoint": "log",
    "00000000000000000007-0000000001.checkpoint.part": "log",
    "00000000000000000007-0000000001.checkpoint.deleted": "log",
    "bootstrap.checkpoint": "log",
    "leader-epoch-checkpoint": "checkpoint",
    "recovery-point-offset-checkpoint": "checkpoint",
    "log-start-offset-checkpoint": "checkpoint",
    "replication-offset-checkpoint": "checkpoint",
    "cleaner-offset-checkpoint": "checkpoint",
    "meta.properties": "text",
    "partition.metadata": "text",
    ".kafka_cleanshutdown": "text",
    "quorum-state": "text",
    "log-facts": "log facts",
    ".lock": None,
    "leader-epoch-checkpoint.tmp": None,
    "notes.txt": None,
}


@pytest.mark.parametrize("name", KINDS)
def test_each_kind_of_file_is_known_by_its_name(name: str) -> None:
    assert kind_of(Path("/data/t-0") / name) == KINDS[name]


def test_small_files_are_printed(run: Run, tmp_path: Path) -> None:
    for name, text, expected in (
        ("quorum-state", '{"leaderId":1,"leaderEpoch":5,"data_version":1}', "leaderId=1 leaderEpoch=5 data_version=1"),
        ("log-facts", Facts(end_offset=7, pid_reset_offsets=[4], segments=[0, 5]).encode().decode(), "pid-reset=4"),
        ("partition.metadata", "version: 0\ntopic_id: x", "topic_id=x"),
        (".kafka_cleanshutdown", '{"version":0,"brokerEpoch":-1}', "version=0 brokerEpoch=-1"),
        ("meta.properties", "#Mon\nversion=1\ncluster.id=c\n", "cluster.id=c"),
        ("cleaner-offset-checkpoint", "0\n1\nt 0 17\n", "topic=t partition=0 offset=17"),
    ):
        (tmp_path / name).write_text(text)
        ran = run("dump", tmp_path / name)
        assert ran.status == 0 and expected in ran.out, (name, ran)
    (tmp_path / "log-facts").write_text("0\n5\nend 7\n")
    assert run("dump", tmp_path / "log-facts").status == 1


@pytest.mark.parametrize(
    "place",
    [
        "__consumer_offsets-4",
        "__consumer_offsets-4." + "a" * 32 + "-delete",
        "__consumer_offsets-4." + "b" * 32 + "-stray",
        "cut/__consumer_offsets-4/AAAAAAAAAAAAAAAAAAAAAQ-1-7",
    ],
)
def test_records_of_internal_topics_are_decoded_wherever_they_lie(run: Run, tmp_path: Path, place: str) -> None:
    target = tmp_path / place
    target.mkdir(parents=True)
    source = Path(__file__).parent / "segments" / "__consumer_offsets-4" / LOG
    for name in (LOG, f"{LOG}.deleted"):
        shutil.copy(source, target / name)
        assert "OffsetCommitValue(" in run("dump", target / name).out


def test_kafkas_bootstrap_file_is_metadata(run: Run, tmp_path: Path) -> None:
    recorded = Path(__file__).parents[1] / "broker" / "golden" / "kafka-4.4.0-bootstrap.checkpoint"
    (tmp_path / f"{METADATA_TOPIC}-0").mkdir()
    shutil.copy(recorded, tmp_path / "bootstrap.checkpoint")
    assert "FeatureLevelRecord(" in run("dump", tmp_path / "bootstrap.checkpoint").out
    assert run("dump", "--verify", tmp_path / "bootstrap.checkpoint").status == 0
    flip(tmp_path / "bootstrap.checkpoint", 100)
    assert run("dump", "--verify", tmp_path / "bootstrap.checkpoint").status == 1
