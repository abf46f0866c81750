"""Takes the golden frames of tests/protocol/golden: each client does its usual work against a real Kafka through the
recording proxy, and a small, varied sample of what went over the wire is written to one JSON file per client.

The frames are evidence from others: neither end of the conversation is ours. A file names the client, its version,
the broker, and how it was taken; `frames` is a list of {api, version, direction, correlation_id, hex}.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Any

from conformance.peers.capture import Frame, RecordingProxy
from conformance.peers.kafka import KafkaBroker, KafkaInstallation
from conformance.peers.processes import PeerUnavailable

MAX_FRAME_BYTES = 5_000
MAX_SINGLE_FRAME_BYTES = 20_000  # kept only when the api, version and direction has nothing smaller
FRAMES_PER_KIND = 3
FRAMES_PER_DATA_KIND = 8
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_DATA_APIS = (0, 1)

# Kafka's api names in the order of their keys (facts of the protocol guide)
_NAMES = """
Produce Fetch ListOffsets Metadata LeaderAndIsr StopReplica UpdateMetadata ControlledShutdown OffsetCommit OffsetFetch
FindCoordinator JoinGroup Heartbeat LeaveGroup SyncGroup DescribeGroups ListGroups SaslHandshake ApiVersions
CreateTopics DeleteTopics DeleteRecords InitProducerId OffsetForLeaderEpoch AddPartitionsToTxn AddOffsetsToTxn EndTxn
WriteTxnMarkers TxnOffsetCommit DescribeAcls CreateAcls DeleteAcls DescribeConfigs AlterConfigs AlterReplicaLogDirs
DescribeLogDirs SaslAuthenticate CreatePartitions CreateDelegationToken RenewDelegationToken ExpireDelegationToken
DescribeDelegationToken DeleteGroups ElectLeaders IncrementalAlterConfigs AlterPartitionReassignments
ListPartitionReassignments OffsetDelete DescribeClientQuotas AlterClientQuotas DescribeUserScramCredentials
AlterUserScramCredentials Vote BeginQuorumEpoch EndQuorumEpoch DescribeQuorum AlterPartition UpdateFeatures Envelope
FetchSnapshot DescribeCluster DescribeProducers BrokerRegistration BrokerHeartbeat UnregisterBroker
DescribeTransactions ListTransactions AllocateProducerIds ConsumerGroupHeartbeat ConsumerGroupDescribe
ControllerRegistration GetTelemetrySubscriptions PushTelemetry AssignReplicasToDirs ListConfigResources
DescribeTopicPartitions ShareGroupHeartbeat ShareGroupDescribe ShareFetch ShareAcknowledge
"""
API_NAMES = dict(enumerate(_NAMES.split()))


def select(frames: list[Frame]) -> list[Frame]:
    """A sample: for each api, version and direction a few frames of different sizes, small ones first."""
    kinds: dict[tuple[int, int, str], dict[int, Frame]] = {}
    for frame in frames:
        kinds.setdefault((frame.api_key, frame.version, frame.direction), {}).setdefault(len(frame.payload), frame)
    chosen: list[Frame] = []
    for (api_key, _, _), by_size in sorted(kinds.items()):
        sizes = sorted(size for size in by_size if size <= MAX_FRAME_BYTES)
        if not sizes:
            sizes = sorted(size for size in by_size if size <= MAX_SINGLE_FRAME_BYTES)[:1]
        wanted = FRAMES_PER_DATA_KIND if api_key in _DATA_APIS else FRAMES_PER_KIND
        if len(sizes) > wanted:  # spread over the range of sizes
            step = (len(sizes) - 1) / (wanted - 1)
            sizes = [sizes[round(step * index)] for index in range(wanted)]
        chosen += [by_size[size] for size in sizes]
    return chosen


def _wait(futures: dict[Any, Any]) -> list[Any]:
    return [future.result(30) for future in futures.values()]


def drive_confluent(bootstrap: str) -> None:
    """librdkafka through confluent-kafka: admin calls, every codec, idempotence, transactions, a group."""
    from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, IsolationLevel, Producer, TopicPartition
    from confluent_kafka.admin import (  # type: ignore[attr-defined]
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        NewPartitions,
        NewTopic,
        OffsetSpec,
    )

    admin = AdminClient({"bootstrap.servers": bootstrap})
    topic = "librdkafka-topic"
    _wait(admin.create_topics([NewTopic(topic, 2, 1, config={"cleanup.policy": "delete"}), NewTopic("brief", 1, 1)]))
    for codec in CODECS:
        producer = Producer({"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 50})
        for index in range(20):
            producer.produce(
                topic, value=b"value %d " % index * 3, key=b"key", headers=[("h", b"x"), ("n", None)], partition=0
            )
        producer.produce(topic, value=None, key=b"tombstone", partition=1)
        producer.flush(20)
    idempotent = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    idempotent.produce(topic, b"once")
    idempotent.flush(20)
    for index, finish in enumerate(("commit_transaction", "abort_transaction")):
        transactional = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"txn-{index}"})
        transactional.init_transactions(20)
        transactional.begin_transaction()
        transactional.produce(topic, b"in a transaction", partition=0)
        transactional.flush(20)
        getattr(transactional, finish)(20)
    options = {
        "bootstrap.servers": bootstrap, "group.id": "librdkafka-group", "auto.offset.reset": "earliest",
        "isolation.level": "read_committed", "enable.auto.commit": False, "fetch.wait.max.ms": 50,
    }  # fmt: skip
    consumer = Consumer(options)
    consumer.subscribe([topic])
    received = consumer.consume(60, timeout=10)
    consumer.commit(asynchronous=False)
    consumer.committed([TopicPartition(topic, 0)], timeout=10)
    consumer.offsets_for_times([TopicPartition(topic, 0, 1)], timeout=10)
    consumer.consume(200, timeout=2)
    consumer.close()
    assert received, "the consumer received nothing"
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    _wait(admin.describe_configs([resource, ConfigResource(ConfigResource.Type.BROKER, "1")]))
    entry = ConfigEntry("retention.ms", "600000", incremental_operation=AlterConfigOpType.SET)
    _wait(
        admin.incremental_alter_configs([ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])])
    )
    _wait(admin.create_partitions([NewPartitions(topic, 3)]))
    kinds: Any = OffsetSpec  # untyped
    for spec in (kinds.earliest(), kinds.latest(), kinds.max_timestamp(), kinds.for_timestamp(1)):
        _wait(admin.list_offsets({TopicPartition(topic, 0): spec}, isolation_level=IsolationLevel.READ_COMMITTED))
    admin.describe_cluster().result(20)
    admin.list_consumer_groups().result(20)
    _wait(admin.describe_consumer_groups(["librdkafka-group"]))
    _wait(admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions("librdkafka-group")]))
    _wait(admin.delete_records([TopicPartition(topic, 0, 5)]))
    _wait(admin.delete_topics(["brief"]))
    with contextlib.suppress(Exception):  # an error answer is a frame too
        _wait(admin.create_topics([NewTopic(topic, 1, 1)]))


def drive_aiokafka(bootstrap: str) -> None:
    """aiokafka: every codec, idempotence, a transaction, a group, admin calls."""

    async def work() -> None:
        from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
        from aiokafka.admin import AIOKafkaAdminClient, NewTopic

        topic = "aiokafka-topic"
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await admin.start()
        await admin.create_topics([NewTopic(topic, 2, 1)])
        for codec in CODECS:
            producer = AIOKafkaProducer(
                bootstrap_servers=bootstrap, compression_type=None if codec == "none" else codec, linger_ms=20
            )
            await producer.start()
            for index in range(10):
                await producer.send(topic, b"value %d" % index, key=b"key", headers=[("h", b"x")], partition=0)
            await producer.stop()
        transactional = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id="aiokafka-txn")
        await transactional.start()
        async with transactional.transaction():
            await transactional.send_and_wait(topic, b"in a transaction", partition=1)
        await transactional.stop()
        consumer = AIOKafkaConsumer(
            topic, bootstrap_servers=bootstrap, group_id="aiokafka-group", auto_offset_reset="earliest",
            isolation_level="read_committed", enable_auto_commit=False, fetch_max_wait_ms=50,
        )  # fmt: skip
        await consumer.start()
        await consumer.getmany(timeout_ms=5000)
        await consumer.commit()
        await consumer.end_offsets([TopicPartition(topic, 0)])
        await consumer.offsets_for_times({TopicPartition(topic, 0): 1})
        await consumer.getmany(timeout_ms=300)
        await consumer.stop()
        await admin.list_topics()
        await admin.describe_cluster()
        await admin.list_consumer_groups()
        await admin.describe_consumer_groups(["aiokafka-group"])
        await admin.list_consumer_group_offsets("aiokafka-group")
        await admin.delete_topics([topic])
        await admin.close()

    asyncio.run(work())


def drive_kafka_python(bootstrap: str) -> None:
    """kafka-python: every codec, a group with commits, offsets by time, admin calls."""
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
    from kafka import codec as kafka_codec
    from kafka.admin import NewTopic

    topic = "kafka-python-topic"
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    admin.create_topics([NewTopic(topic, 2, 1)])
    for codec in CODECS:
        if codec != "none" and not getattr(kafka_codec, f"has_{codec}")():
            continue  # it needs another package for this one; the other clients cover it
        producer = KafkaProducer(
            bootstrap_servers=bootstrap, compression_type=None if codec == "none" else codec, linger_ms=20
        )
        for index in range(10):
            producer.send(topic, b"value %d" % index, key=b"key", headers=[("h", b"x")], partition=0)
        producer.flush(20)
        producer.close()
    consumer = KafkaConsumer(
        topic, bootstrap_servers=bootstrap, group_id="kafka-python-group", auto_offset_reset="earliest",
        enable_auto_commit=False, fetch_max_wait_ms=50,
    )  # fmt: skip
    for _ in range(20):
        if consumer.poll(timeout_ms=500):
            break
    consumer.commit()
    partition = TopicPartition(topic, 0)
    consumer.end_offsets([partition])
    consumer.beginning_offsets([partition])
    consumer.offsets_for_times({partition: 1})
    consumer.poll(timeout_ms=300)
    consumer.close()
    admin.list_topics()
    admin.describe_cluster()
    admin.delete_topics([topic])
    admin.close()


def java_driver(installation: KafkaInstallation) -> Callable[[str], None]:
    """Kafka's own command line tools, that is kafka-clients in Java."""

    def drive(bootstrap: str) -> None:
        server = ["--bootstrap-server", bootstrap]
        topic = ["--topic", "java-topic"]
        tool = installation.tool
        tool("topics", *server, "--create", *topic, "--partitions", "2", "--config", "retention.ms=600000")
        for codec in ("none", "zstd"):
            tool("console-producer", *server, *topic, "--compression-codec", codec, stdin="one\ntwo\nthree\n")
        tool("console-consumer", *server, *topic, "--from-beginning", "--max-messages", "6", "--group", "java-group",
             "--isolation-level", "read_committed")  # fmt: skip
        tool("topics", *server, "--describe", *topic)
        tool("topics", *server, "--alter", *topic, "--partitions", "3")
        tool("configs", *server, "--alter", "--entity-type", "topics", "--entity-name", "java-topic", "--add-config",
             "retention.ms=700000")  # fmt: skip
        tool("configs", *server, "--describe", "--entity-type", "topics", "--entity-name", "java-topic")
        for when in ("-1", "-2", "-3", "1"):
            tool("get-offsets", *server, *topic, "--time", when)
        tool("consumer-groups", *server, "--describe", "--group", "java-group")
        tool("broker-api-versions", *server)
        tool("producer-perf-test", "--num-records", "20", "--record-size", "40", "--throughput", "-1", *topic,
             "--transactional-id", "java-txn", "--bootstrap-server", bootstrap)  # fmt: skip
        tool("topics", *server, "--delete", *topic)

    return drive


def drive_kcat(bootstrap: str) -> None:
    """kcat (C, an older librdkafka from the distribution)."""
    topic = "kcat-topic"
    for codec in CODECS:
        subprocess.run(
            ["kcat", "-b", bootstrap, "-P", "-t", topic, "-z", codec, "-K:", "-H", "h=x"],
            input=b"k1:one\nk2:two\nk3:three\n", check=True, timeout=60,
        )  # fmt: skip
    for arguments in (
        ["-L"],
        ["-C", "-t", topic, "-o", "beginning", "-e", "-p", "0"],
        ["-C", "-t", topic, "-o", "-2", "-c", "2", "-p", "0"],
        ["-Q", "-t", f"{topic}:0:1"],
    ):
        subprocess.run(["kcat", "-b", bootstrap, *arguments], check=True, timeout=60, stdout=subprocess.DEVNULL)


def clients(installation: KafkaInstallation) -> dict[str, tuple[str, Callable[[str], None]]]:
    """Client name -> (its version, what it does against an address)."""
    import confluent_kafka

    found: dict[str, tuple[str, Callable[[str], None]]] = {
        "librdkafka": (f"{confluent_kafka.libversion()[0]} (confluent-kafka {confluent_kafka.__version__})",
                       drive_confluent),
        "aiokafka": (package_version("aiokafka"), drive_aiokafka),
        "kafka-python": (package_version("kafka-python"), drive_kafka_python),
        "kafka-clients-java": (installation.version, java_driver(installation)),
    }  # fmt: skip
    if shutil.which("kcat"):
        text = subprocess.run(["kcat", "-V"], capture_output=True, text=True, check=False).stdout
        words = next((line for line in text.splitlines() if line.startswith("Version")), "unknown")
        found["kcat"] = (words, drive_kcat)
    return found


def capture(names: list[str], target: Path, *, version: str) -> list[Path]:
    """Runs the named clients (all when empty), each against a fresh broker; the files written."""
    installation = KafkaInstallation(version)
    known = clients(installation)
    written = []
    for name in names or list(known):
        if name not in known:
            raise PeerUnavailable(f"no client {name!r} here; there are {', '.join(known)}")
        client_version, drive = known[name]
        with tempfile.TemporaryDirectory(prefix="capture-") as scratch, RecordingProxy() as proxy:
            broker = KafkaBroker(installation, Path(scratch) / "broker", proxied_port=proxy.port)
            with broker:
                proxy.forward_to(f"127.0.0.1:{broker.proxy_target_port}")
                drive(proxy.bootstrap)
            frames = select(proxy.take())
        written.append(_write(target, name, client_version, version, frames))
    return written


def _write(target: Path, name: str, client_version: str, broker_version: str, frames: list[Frame]) -> Path:
    target.mkdir(parents=True, exist_ok=True)
    head = {
        "client": name,
        "client_version": client_version,
        "broker": f"Apache Kafka {broker_version}",
        "captured": f"python -m conformance.peers capture {name}: recording proxy between the two",
        "frame": "without the 4-byte size; starts with the request header or the response header",
    }
    lines = [
        json.dumps(
            {
                "api": API_NAMES.get(frame.api_key, str(frame.api_key)),
                "version": frame.version,
                "direction": frame.direction,
                "correlation_id": frame.correlation_id,
                "hex": frame.payload.hex(),
            }
        )
        for frame in frames
    ]
    path = target / f"{name}.json"
    body = json.dumps(head, indent=1).rstrip("\n}") + ',\n "frames": [\n  ' + ",\n  ".join(lines) + "\n ]\n}\n"
    path.write_text(body)
    json.loads(body)
    return path
