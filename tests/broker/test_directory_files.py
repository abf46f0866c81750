"""The files beside the partitions, and names with a meaning: those that Kafka keeps, as Kafka reads them."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from kmirror.cli.dump import command as dump
from kmirror.protocol import uuids
from kmirror.storage.checkpoints import read_offsets
from tests.broker.harness import DIRECTORY, Broker

HIGH_WATERMARKS = f"{DIRECTORY}/replication-offset-checkpoint"
CLEAN = f"{DIRECTORY}/.kafka_cleanshutdown"
TOPIC_LINE = re.compile(r"[a-zA-Z0-9._-]+ \d+ \d+")


def stopped() -> Broker:
    """Topic t with 3 and 1 records, the first of them deleted, and an empty one; stopped cleanly."""
    broker = Broker()
    broker.create("t", 2)
    broker.create("empty")
    broker.produce("t", b"1", b"2", b"3")
    broker.produce("t", b"1", index=1)
    broker.world.delete_records("t", 0, 2)
    broker.world.close()
    return broker


def test_all_of_kafkas_are_there() -> None:
    broker = stopped()
    files = {name for name in broker.fs.list_dir(DIRECTORY) if "-0" not in name and "-1" not in name}
    expected = {"recovery-point-offset-checkpoint", "log-start-offset-checkpoint", "replication-offset-checkpoint"}
    assert files == {*expected, "meta.properties", ".kafka_cleanshutdown"}
    for name in expected:
        version, count, *lines = broker.fs.read_file(f"{DIRECTORY}/{name}").decode().splitlines()
        assert (version, int(count)) == ("0", len(lines))
        assert all(TOPIC_LINE.fullmatch(line) for line in lines)
    assert read_offsets(broker.fs, HIGH_WATERMARKS) == {("t", 0): 3, ("t", 1): 1}
    assert read_offsets(broker.fs, f"{DIRECTORY}/log-start-offset-checkpoint") == {("t", 0): 2}
    points = read_offsets(broker.fs, f"{DIRECTORY}/recovery-point-offset-checkpoint")
    assert points.pop(("__cluster_metadata", 0)) == broker.world._metadata.log_end_offset
    assert points == {("t", 0): 3, ("t", 1): 1}
    clean = json.loads(broker.fs.read_file(CLEAN))
    assert clean == {"version": 0, "brokerEpoch": -1}
    identity = broker.fs.read_file(f"{DIRECTORY}/meta.properties").decode().splitlines()
    assert [line.partition("=")[0] for line in identity] == ["cluster.id", "directory.id", "node.id", "version"]
    partition = broker.fs.read_file(f"{DIRECTORY}/t-0/partition.metadata").decode().splitlines()
    assert partition == ["version: 0", f"topic_id: {uuids.to_text(broker.world.image.topics_by_name['t'].topic_id)}"]


def test_high_watermarks_never_speak_of_what_is_not_on_disk() -> None:
    broker = Broker()
    broker.create("t")
    broker.create("cached", flush__messages="1000000")
    for name in ("t", "cached"):
        broker.produce(name, b"1", b"2")
    for name in ("t", "cached"):
        broker.produce(name, b"3", flush=False)
    broker.world.write_checkpoints()
    assert read_offsets(broker.fs, HIGH_WATERMARKS) == {("t", 0): 2, ("cached", 0): 3}
    broker.flush.run()
    broker.world.write_checkpoints()
    assert read_offsets(broker.fs, HIGH_WATERMARKS)["t", 0] == 3


def test_high_watermarks_of_logs_that_stay_closed_are_kept() -> None:
    broker = stopped()
    broker._open()
    broker.produce("t", b"2", index=1)
    broker.world.write_checkpoints()
    assert read_offsets(broker.fs, HIGH_WATERMARKS) == {("t", 0): 3, ("t", 1): 2}


def test_a_topic_made_again_has_nothing_of_the_old_one(caplog: pytest.LogCaptureFixture) -> None:
    broker = stopped()
    broker._open()
    broker.settle(broker.world.delete_topic("t"))
    broker.create("t", 2)
    broker.produce("t", b"1")
    broker.world.write_checkpoints()
    assert read_offsets(broker.fs, HIGH_WATERMARKS) == {("t", 0): 1}
    assert ("t", 1) not in read_offsets(broker.fs, f"{DIRECTORY}/recovery-point-offset-checkpoint")
    with caplog.at_level(logging.ERROR):
        broker.crash()
    assert "has no directory" not in caplog.text


@pytest.mark.parametrize("content", [b"", b"1\n0\n", b"0\n5\nt 0 3\n", b"\xff\xfe", b"0\n1\nt zero 3\n"])
def test_damaged_high_watermarks_cost_nothing(content: bytes) -> None:
    broker = stopped()
    broker.fs.write_atomic(HIGH_WATERMARKS, content)
    broker._open()
    assert broker.world.directory.clean, "no recovery for a file that only others read"
    assert broker.world.partition("t", 0).high_watermark == 3
    broker.world.close()
    assert read_offsets(broker.fs, HIGH_WATERMARKS)["t", 0] == 3


def test_the_mark_of_a_clean_stop_is_taken_before_anything_else() -> None:
    broker = stopped()
    broker._open()
    assert not broker.fs.exists(CLEAN)
    fs = broker.fs.crash(keep_nothing=True)
    assert not fs.exists(CLEAN)
    broker.fs = fs
    broker._open()
    assert not broker.world.directory.clean
    assert broker.world.partition("t", 0).leader_epoch == 1


@pytest.mark.parametrize("content", [b"", b"not JSON", b'{"version":0,"brokerEpoch":7}'])
def test_the_mark_counts_whatever_is_in_it(content: bytes) -> None:
    """Kafka looks whether it is there (CleanShutdownFileHandler.exists); before 3.9 it was empty."""
    broker = stopped()
    broker.fs.write_atomic(CLEAN, content)
    broker._open()
    assert broker.world.directory.clean


def test_directories_with_a_suffix() -> None:
    """`-delete` goes on being deleted, whoever renamed it; `-stray`, and Kafka's `-future`, are nobody's to touch."""
    broker = stopped()
    hexadecimal = "0123456789abcdef0123456789abcdef"
    names = {suffix: f"{DIRECTORY}/other-7.{hexadecimal}{suffix}" for suffix in ("-delete", "-stray", "-future")}
    for path in names.values():
        broker.fs.make_dirs(path)
        broker.fs.write_atomic(f"{path}/00000000000000000000.log", b"")
        broker.fs.write_atomic(f"{path}/partition.metadata", b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ")
    broker._open()
    broker.world.tick()
    assert {suffix: broker.fs.exists(path) for suffix, path in names.items()} == {
        "-delete": False,
        "-stray": True,
        "-future": True,
    }


def test_a_directory_that_no_topic_has_stays_under_its_name_until_a_topic_wants_it() -> None:
    broker = stopped()
    path = f"{DIRECTORY}/lost-0"
    broker.fs.make_dirs(path)
    broker.fs.write_atomic(f"{path}/partition.metadata", b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ")
    broker._open()
    broker.world.tick()
    assert broker.fs.exists(path)
    broker.create("lost")
    broker.produce("lost", b"1")
    assert [name for name in broker.fs.list_dir(DIRECTORY) if re.fullmatch(r"lost-0\.[0-9a-f]{32}-stray", name)]


def test_files_that_a_stop_left_half_done() -> None:
    """`.deleted` and `.cleaned` go, a `.swap` beside a `.cleaned` of a lower offset too (LogLoader)."""
    broker = stopped()
    kept = broker.fs.list_dir(f"{DIRECTORY}/t-0")
    left = [
        "00000000000000000000.log.deleted",
        "00000000000000000000.snapshot.deleted",
        "00000000000000000000.log.cleaned",
        "00000000000000000000.timeindex.cleaned",
        "00000000000000000002.log.swap",
        "leader-epoch-checkpoint.tmp",
    ]
    for name in left:
        broker.fs.write_atomic(f"{DIRECTORY}/t-0/{name}", b"rubbish")
    broker._open()
    assert broker.world.partition("t", 0).read(2, max_bytes=1000).next_offset == 3
    broker.world.close()
    assert broker.fs.list_dir(f"{DIRECTORY}/t-0") == kept


def test_dump_prints_them(tmp_path: Path) -> None:
    broker = stopped()
    for name in ("replication-offset-checkpoint", ".kafka_cleanshutdown"):
        (tmp_path / name).write_bytes(broker.fs.read_file(f"{DIRECTORY}/{name}"))
    result = CliRunner().invoke(dump, [str(tmp_path)], standalone_mode=False)
    assert result.return_value == 0
    assert "topic=t partition=0 offset=3" in result.output
    assert "brokerEpoch=-1" in result.output
