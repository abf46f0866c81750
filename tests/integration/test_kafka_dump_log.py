"""Apache Kafka's dump tool over every file of a kmirror directory that has lived: each record decoded, no complaint.

The life: segments that rolled, every codec, transactions of both protocols, groups, compaction of data and of
`__consumer_offsets`, retention, deleted records, a mirror that was failed over with a transaction open, snapshots of
the metadata, a kill. What the tool decodes is counted against what was written, and against the batches in the files,
so that silence cannot pass. The one exception: record types that only KIP-1279 has, which no released tool knows.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from conformance.peers.fixtures import MakeKafka
from conformance.peers.kafka import KafkaInstallation
from conformance.peers.kmirror_process import KmirrorBroker, kmirror_command, run_kmirror
from conformance.peers.maven import OLD_VERSIONS, version_key
from conformance.peers.waiting import eventually
from conformance.wire.batches import parse
from conformance.wire.client import Broker
from kmirror.cli.file_formats import kind_of, snapshot_rows, txn_index_rows
from kmirror.protocol.api.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from tests.integration.java_programs import ToolShell
from tests.integration.source_topics import QUIET, fill, wait_until_quiet
from tests.integration.watching import control_types, wait_until_equal_ends

pytestmark = pytest.mark.kafka
VERSION = "4.4.0"
VERSIONS = os.environ.get("KMIRROR_SOURCE_VERSIONS", f"{VERSION},{OLD_VERSIONS[0]}").split(",")
PLAIN_RECORDS, OLD_RECORDS, CODEC_RECORDS, TXN_RECORDS = 3000, 1500, 200, 40
COMMIT_ROUNDS = 30
DELETED_RECORDS = 77
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
SETTINGS = {
    "log.cleaner.backoff.ms": "200",
    "log.retention.check.interval.ms": "200",
    "log.segment.delete.delay.ms": "100",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "metadata.log.max.record.bytes.between.snapshots": "1500",
}
SMALL = ("--set", "segment.bytes=1048576", "--set", "index.interval.bytes=1024")
COMPACTED = ("--set", "cleanup.policy=compact", "--set", "min.cleanable.dirty.ratio=0.01", "--set", "segment.ms=100")
DECODERS = {
    "__cluster_metadata": "--cluster-metadata-decoder",
    "__consumer_offsets": "--offsets-decoder",
    "__transaction_state": "--transaction-log-decoder",
}
COMPLAINTS = re.compile(
    r"Error at|isvalid: false|invalid bytes|[Ee]xception|Unknown record type|[Mm]ismatch|out of order"
    r"|not found in the log|Ignoring|Failed|could not"
)
KIP_1279_CONTROL = re.compile(r"controlType: UNKNOWN\(7\)|controlType: UNKNOWN\(-1\)\(7\)|controlType: \w+\(7\)")
TEXT_FILES = {
    ".lock",
    "leader-epoch-checkpoint",
    "partition.metadata",
    "meta.properties",
    ".kafka_cleanshutdown",
    "log-facts",
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
    "replication-offset-checkpoint",
    "cleaner-offset-checkpoint",
}
"""What the tool is not made for."""
MAY_HAVE_GAPS = {"compacted", "__consumer_offsets"}


@dataclass(frozen=True)
class Lived:
    directory: Path
    """The data directory, its broker stopped."""
    verified_running: str
    """What `kmirror dump --verify` said while it ran."""
    tools: ToolShell


def produce(broker: KmirrorBroker, topic: str, lines: list[str], *options: str) -> None:
    """Through the command line; a list of lines is one request of a few batches."""
    command = kmirror_command("produce", "--topic", topic, "--bootstrap", broker.bootstrap, *options)
    done = subprocess.run(command, input="\n".join(lines), text=True, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def grow(broker: KmirrorBroker) -> None:
    """Data topics: rolled, trimmed, expired, in each codec."""
    broker.run("topic", "create", "plain", *SMALL)
    broker.run("topic", "create", "expired", *SMALL, "--set", "retention.bytes=1")
    for codec in CODECS:
        broker.run("topic", "create", f"codec-{codec}", *SMALL)
        produce(broker, f"codec-{codec}", [f"{codec} {n}" for n in range(CODEC_RECORDS)], "--compression", codec)
    value = "x" * 1000
    producer = Producer({"bootstrap.servers": broker.bootstrap, "batch.num.messages": 10, **QUIET})
    for number in range(PLAIN_RECORDS):
        producer.produce("plain", f"{number} {value}".encode())
        producer.poll(0)
    assert producer.flush(60) == 0
    kept = DeleteRecordsPartition(partition_index=0, offset=DELETED_RECORDS)
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="codec-none", partitions=[kept])], timeout_ms=9000)
    answer = Broker(broker.bootstrap).request(request).topics[0].partitions[0]
    assert (answer.error_code, answer.low_watermark) == (0, DELETED_RECORDS)
    for _ in range(3):
        produce(broker, "expired", [f"{n} {value}" for n in range(OLD_RECORDS // 3)])


def transact(broker: KmirrorBroker) -> None:
    """v2 by the command line, v1 by librdkafka; committed and aborted."""
    broker.run("topic", "create", "transactions")
    for number in range(4):
        lines = [f"{number} {n}" for n in range(TXN_RECORDS // 4)]
        options = ("--transactional-id", "v2", "--transaction-size", "5", *(["--abort"] if number % 2 else []))
        produce(broker, "transactions", lines, *options)
    for number in range(4):
        producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "v1", **QUIET})
        producer.init_transactions(30)
        producer.begin_transaction()
        for n in range(TXN_RECORDS // 4):
            producer.produce("transactions", f"{number} {n}".encode())
        producer.flush(30)
        (producer.abort_transaction if number % 2 else producer.commit_transaction)(30)


def join_groups(broker: KmirrorBroker) -> None:
    """Members that come and go, and many commits of the same few offsets."""
    for number in range(3):
        consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": f"group-{number}",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **QUIET,
            }
        )
        consumer.subscribe(["plain"])
        eventually(partial(consumer.poll, 1), what="record of a group")
        broker.run("config", "alter", "topic", "__consumer_offsets", *COMPACTED[2:])
        for at in range(COMMIT_ROUNDS):
            consumer.commit(offsets=[TopicPartition("plain", 0, at)], asynchronous=False)
        consumer.close()
    broker.run("group", "delete", "group-0")


def compact(broker: KmirrorBroker) -> None:
    broker.run("topic", "create", "compacted", *COMPACTED)
    for number in range(12):
        produce(broker, "compacted", [f"k{n}:{number}" for n in range(20)], "--key-separator", ":")

    def cleaned() -> bool:
        """Only what is followed by a newer segment is cleaned."""
        produce(broker, "compacted", ["k0:again"], "--key-separator", ":")
        path = broker.data_directory / "cleaner-offset-checkpoint"
        said = path.read_text() if path.exists() else ""
        return "compacted 0" in said and "__consumer_offsets" in said

    eventually(cleaned, what="cleaned logs")


def fail_over(broker: KmirrorBroker, source: KmirrorBroker) -> None:
    source.run("topic", "create", "mirrored", *SMALL)
    produce(source, "mirrored", [f"{n}" for n in range(100)])
    produce(source, "mirrored", [f"{n}" for n in range(10)], "--transactional-id", "m", "--abort")
    open_one = Producer({"bootstrap.servers": source.bootstrap, "transactional.id": "open", **QUIET})
    open_one.init_transactions(30)
    open_one.begin_transaction()
    open_one.produce("mirrored", b"never decided")
    open_one.flush(30)
    broker.run("mirror", "create", "m", "--source", source.bootstrap, "--topics", "mirrored", "--start")
    wait_until_equal_ends(source.bootstrap, broker.bootstrap, "mirrored")
    broker.run("mirror", "stop", "m", "--topics", "mirrored")
    produce(broker, "mirrored", ["written here"])
    produce(broker, "mirrored", ["written here"], "--transactional-id", "here")


@pytest.fixture(scope="module")
def lived(
    kafka_installation: Callable[[str], KafkaInstallation], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Lived]:
    place = tmp_path_factory.mktemp("dump-log")
    broker = KmirrorBroker(place / "kmirror", settings=SETTINGS)
    with broker, KmirrorBroker(place / "source") as source:
        grow(broker)
        transact(broker)
        join_groups(broker)
        compact(broker)
        fail_over(broker, source)
        broker.run("topic", "create", "gone", "--partitions", "3")
        broker.run("topic", "delete", "gone")
        broker.restart(clean=False)
        produce(broker, "plain", ["after the kill"])
        broker.run("topic", "create", "late")
        produce(broker, "late", ["one"])
        running = run_kmirror("dump", "--verify", str(broker.data_directory))
        copy = place / "directory"
        broker.stop()
        shutil.copytree(broker.data_directory, copy)
    with ToolShell(kafka_installation(VERSION)) as tools:
        yield Lived(copy, running.stdout + running.stderr, tools)


def topic_and_partition(path: Path) -> tuple[str, int]:
    topic, _, index = path.parent.name.rpartition("-")
    return topic, int(index)


def dumped(lived: Lived, *options: str, files: list[Path]) -> dict[Path, str]:
    """What the tool says of each file; it must end well, and complain of nothing."""
    ran = lived.tools.run("dump-log", [*options, "--files", ",".join(map(str, files))])
    assert ran.returncode == 0, ran.stdout[-3000:]
    complaints = [line for line in ran.stdout.splitlines() if COMPLAINTS.search(line)]
    assert not complaints, complaints[:5]
    for name, pairs in re.findall(r"^Non-consecutive offsets in (\S+)\n((?:  .*\n?)+)", ran.stdout, re.MULTILINE):
        begins = all(line.startswith("  -1 is followed by ") for line in pairs.splitlines())  # the tool counts from 0
        assert begins or topic_and_partition(Path(name))[0] in MAY_HAVE_GAPS, (name, pairs)
    blocks = {}
    for block in ran.stdout.split("Dumping ")[1:]:
        name, _, text = block.partition("\n")
        blocks[Path(name)] = text
    assert blocks.keys() == set(files)
    return blocks


def found(lived: Lived, pattern: str) -> list[Path]:
    return sorted(lived.directory.rglob(pattern))


def records_in(path: Path) -> int:
    return sum(batch.record_count for batch in parse(path.read_bytes()))


def test_each_file_is_one_that_the_tool_reads_or_a_known_text(lived: Lived) -> None:
    for path in lived.directory.rglob("*"):
        if path.is_file() and path.name not in TEXT_FILES:
            assert kind_of(path) is not None, path
            assert path.suffix in (".log", ".index", ".timeindex", ".txnindex", ".snapshot", ".checkpoint"), path


def test_the_life_had_everything(lived: Lived) -> None:
    """Guards the guard."""
    logs = Counter(path.parent.name for path in found(lived, "*.log"))
    assert logs["plain-0"] >= 3
    first = found(lived, "expired-0/*.log")[0].name
    assert int(first.partition(".")[0]) > 0, "nothing was deleted by retention"
    kept = sum(records_in(path) for path in found(lived, "compacted-0/*.log"))
    assert 20 <= kept < 12 * 20
    assert f"codec-none 0 {DELETED_RECORDS}" in (lived.directory / "log-start-offset-checkpoint").read_text()
    assert "__consumer_offsets" in (lived.directory / "cleaner-offset-checkpoint").read_text()
    assert any(path.stat().st_size for path in found(lived, "transactions-0/*.txnindex"))
    kinds = Counter(kind for _, kind, _ in control_types(lived.directory, "mirrored", 0))
    assert kinds[7] == 1 and kinds[0] == 2 and kinds[1] == 1
    assert found(lived, "__cluster_metadata-0/*.checkpoint")


def test_every_record_of_every_segment_is_decoded(lived: Lived) -> None:
    by_decoder: dict[str, list[Path]] = {}
    for path in found(lived, "*.log"):
        by_decoder.setdefault(DECODERS.get(topic_and_partition(path)[0], ""), []).append(path)
    assert by_decoder.keys() == {"", *DECODERS.values()}
    decoded: Counter[str] = Counter()
    kip_only = 0
    for decoder, files in by_decoder.items():
        options = [option for option in (decoder, "--deep-iteration", "--print-data-log") if option]
        for path, text in dumped(lived, *options, files=files).items():
            rows = [line for line in text.splitlines() if line.startswith("| offset:")]
            assert len(rows) == records_in(path), path
            batches = [line for line in text.splitlines() if line.startswith("baseOffset:")]
            assert len(batches) == len(parse(path.read_bytes())) == text.count("isvalid: true"), path
            unknown = [row for row in rows if "controlType:" in row]
            assert all(KIP_1279_CONTROL.search(row) for row in unknown), unknown
            kip_only += len(unknown)
            plain = [row for row in rows if not re.search("endTxnMarker|controlType|LeaderChange", row)]
            if decoder:
                assert all("payload: {" in row or "payload: <DELETE>" in row for row in plain), path
            decoded[path.parent.name] += len(plain)
    assert kip_only == 1, "the reset of the failover"
    assert decoded["plain-0"] == PLAIN_RECORDS + 1
    assert decoded["transactions-0"] == 2 * TXN_RECORDS
    assert all(decoded[f"codec-{codec}-0"] == CODEC_RECORDS for codec in CODECS)
    assert decoded["mirrored-0"] == 100 + 10 + 1 + 2
    assert decoded["__transaction_state-0"] + decoded["__transaction_state-1"] >= 3 * 8


def test_offsets_and_transactions_are_those_that_were_written(lived: Lived) -> None:
    offsets = found(lived, "__consumer_offsets-*/*.log")
    text = "".join(dumped(lived, "--offsets-decoder", "--print-data-log", files=offsets).values())
    keys = [json.loads(key) for key in re.findall(r"key: (\{.*?\}\}?) payload", text)]
    assert {"group-1", "group-2"} <= {key["data"]["group"] for key in keys}
    last = re.findall(
        r'"group":"group-2","topic":"plain","partition":0\}\} payload: \{"version":"\d","data":\{"offset":(\d+)', text
    )
    assert last and int(last[-1]) == COMMIT_ROUNDS - 1
    assert "<DELETE>" in text, "group-0 was deleted"
    states = found(lived, "__transaction_state-*/*.log")
    text = "".join(dumped(lived, "--transaction-log-decoder", "--print-data-log", files=states).values())
    assert {"v1", "v2", "here"} <= set(re.findall(r'"transactionalId":"([^"]+)"', text))
    statuses = set(re.findall(r'"transactionStatus":"(\w+)"', text))
    assert {"Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort"} <= statuses


def test_the_metadata_and_its_snapshots_are_decoded(lived: Lived) -> None:
    files = [*found(lived, "__cluster_metadata-0/*.log"), *found(lived, "__cluster_metadata-0/*.checkpoint")]
    newest: set[str] = set()
    for path, text in dumped(lived, "--cluster-metadata-decoder", "--print-data-log", files=files).items():
        payloads = [json.loads(payload) for payload in re.findall(r"payload: (\{.*\})$", text, re.MULTILINE)]
        controls = len(re.findall("SnapshotHeader|SnapshotFooter", text))
        assert len(payloads) + controls == records_in(path)
        assert controls == (2 if path.suffix == ".checkpoint" else 0)
        topics = {payload["data"]["name"] for payload in payloads if payload["type"] == "TOPIC_RECORD"}
        if path.suffix == ".checkpoint":
            assert f"Snapshot end offset: {int(path.name[:20])}, epoch: {int(path.name[21:31])}" in text
            newest = topics
    assert {"plain", "compacted", "transactions"} <= newest


def test_every_index_agrees_with_its_log(lived: Lived) -> None:
    """The tool looks up each entry in the log, and does Kafka's own sanity check."""
    indexes, times = found(lived, "*.index"), found(lived, "*.timeindex")
    assert len(indexes) == len(times) == len(found(lived, "*.log"))
    for files, entry, size_bytes in ((indexes, r"^offset: \d+ position: \d+$", 8), (times, r"^timestamp: \d+ off", 12)):
        entries = 0
        for path, text in dumped(lived, files=files).items():
            seen = len(re.findall(entry, text, re.MULTILINE))
            assert seen == path.stat().st_size // size_bytes, path
            entries += seen
        assert entries >= 100 if size_bytes == 8 else entries >= len(files) // 2
        dumped(lived, "--verify-index-only", files=files)
        for path, text in dumped(lived, "--index-sanity-check", files=files).items():
            empty = path.suffix == ".index" and not path.stat().st_size
            assert (f"{path} is empty." if empty else f"{path} passed sanity check.") in text


def test_snapshots_and_transaction_indexes_say_what_we_read_in_them(lived: Lived) -> None:
    snapshots = found(lived, "*.snapshot")
    producers = 0
    for path, text in dumped(lived, files=snapshots).items():
        rows = list(snapshot_rows(path))
        said = [
            tuple(map(int, row))
            for row in re.findall(
                r"^producerId: (\d+) producerEpoch: (\d+) coordinatorEpoch: (-?\d+)", text, re.MULTILINE
            )
        ]
        assert said == [(row["producer_id"], row["producer_epoch"], row["coordinator_epoch"]) for row in rows]
        offsets = [int(offset) for offset in re.findall(r"lastOffset: (\d+)", text)]
        assert offsets == [row["last_offset"] for row in rows if row["last_offset"] >= 0]
        producers += len(rows)
    assert producers >= 3
    aborted = 0
    for path, text in dumped(lived, files=found(lived, "*.txnindex")).items():
        names = ("version", "producer_id", "first_offset", "last_offset", "last_stable_offset")
        pattern = r"^version: (\d+) producerId: (\d+) firstOffset: (\d+) lastOffset: (\d+) lastStableOffset: (\d+)$"
        said = [tuple(map(int, row)) for row in re.findall(pattern, text, re.MULTILINE)]
        assert said == [tuple(row[name] for name in names) for row in txn_index_rows(path)]
        aborted += len(said)
    assert aborted == 4 + 2 + 2, "transactions v2 in twos of five records, v1, and those of the mirror"


def test_our_own_check_agrees(lived: Lived) -> None:
    """Running, and stopped: no finding; and with a bit flipped both say so."""
    assert re.search(r"^total( +\d+){4} +0 +0 +0$", lived.verified_running, re.MULTILINE), lived.verified_running
    ran = run_kmirror("dump", "--verify", "--json", str(lived.directory))
    *findings, summary = map(json.loads, ran.stdout.splitlines())
    assert findings == []
    assert summary["records"] >= PLAIN_RECORDS
    path = lived.directory.parent / "spoilt" / "plain-0" / f"{0:020d}.log"
    shutil.copytree(lived.directory / "plain-0", path.parent)
    data = bytearray(path.read_bytes())
    data[5000] ^= 1
    path.write_bytes(data)
    assert run_kmirror("dump", "--verify", str(path.parent), check=False).returncode == 1
    ran_tool = lived.tools.run("dump-log", ["--deep-iteration", "--files", str(path)])
    assert COMPLAINTS.search(ran_tool.stdout)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_kafkas_directory_is_checked_without_a_false_word(
    version: str, make_kafka: MakeKafka, tmp_path: Path
) -> None:
    """Running, stopped, and killed."""
    source = fill(make_kafka(version, overrides={"log.cleaner.backoff.ms": "300"}))
    wait_until_quiet(source)
    place = source.kafka.data_directory
    ran = run_kmirror("dump", "--verify", str(place))
    assert "a broker is running" in ran.stderr
    assert verdict(ran.stdout) == (0, 0), ran.stdout
    if version_key(version) >= (3, 3, 0):  # ZooKeeper lets nobody come back so soon
        source.kafka.kill()
        shutil.copytree(place, tmp_path / "killed")
        ran = run_kmirror("dump", "--verify", str(tmp_path / "killed"))
        assert verdict(ran.stdout)[0] == 0, ran.stdout
        source.kafka.start()
    source.kafka.stop()
    ran = run_kmirror("dump", "--verify", str(place))
    assert verdict(ran.stdout) == (0, 0), ran.stdout
    assert "a broker is running" not in ran.stderr


def verdict(output: str) -> tuple[int, int]:
    """How much damage there is, and how much that a start mends."""
    *_, damage, stale, _notes = output.splitlines()[-1].split()
    return int(damage), int(stale)
