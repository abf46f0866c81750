"""Creating, growing, deleting topics; leader epochs; what a start finds again."""

from __future__ import annotations

from itertools import count

import pytest

from kmirror.broker.metadata import TopicState
from kmirror.broker.topic_admin import CreateTopicSpec
from kmirror.effects import Promise
from kmirror.errors import ApiError, ConfigError, StorageError
from kmirror.protocol import uuids
from kmirror.protocol.errors import ErrorCode
from tests.broker.harness import DIRECTORY, Broker, OverlappingFlush, error_code, make_batch
from tests.power_cut import powered_until


def create_code(broker: Broker, spec: CreateTopicSpec) -> int:
    promise = broker.world.create_topic(spec)
    broker.flush.run()
    return error_code(promise)


def test_a_topic_is_seen_when_it_is_on_disk_and_found_again() -> None:
    broker = Broker()
    promise = broker.world.create_topic(CreateTopicSpec("t", 3, configs={"retention.ms": "5"}))
    assert not promise.done
    assert "t" not in broker.world.image.topics_by_name
    assert create_code(broker, CreateTopicSpec("t", 1)) == ErrorCode.TOPIC_ALREADY_EXISTS
    topic = promise.result()
    assert (topic.name, len(topic.partitions), topic.configs) == ("t", 3, {"retention.ms": "5"})
    broker.crash()
    again = broker.world.image.topics_by_name["t"]
    assert (again.topic_id, len(again.partitions), again.configs) == (topic.topic_id, 3, {"retention.ms": "5"})
    assert broker.world.partition_by_id(topic.topic_id, 2) is again.partitions[2]


def test_a_creation_that_was_not_flushed_may_be_gone_but_never_half() -> None:
    for seed in range(20):
        broker = Broker(seed=seed)
        broker.world.create_topic(CreateTopicSpec("t", 5))
        broker.crash()
        topic = broker.world.image.topics_by_name.get("t")
        assert topic is None or len(topic.partitions) == 5, f"seed {seed}"


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        (CreateTopicSpec("", 1), 17),
        (CreateTopicSpec(".", 1), 17),
        (CreateTopicSpec("..", 1), 17),
        (CreateTopicSpec("a" * 250, 1), 17),
        (CreateTopicSpec("a b", 1), 17),
        (CreateTopicSpec("a\n", 1), 17),
        (CreateTopicSpec("__cluster_metadata", 1), 42),
        (CreateTopicSpec("x_y", 1), 17),
        (CreateTopicSpec("t", 0), 37),
        (CreateTopicSpec("t", -2), 37),
        (CreateTopicSpec("t", 20_000), 44),
        (CreateTopicSpec("t", 1, 0), 38),
        (CreateTopicSpec("t", 1, 3), 38),
        (CreateTopicSpec("t", 1, -2), 38),
        (CreateTopicSpec("t", 1, assignments={0: [1]}), 42),
        (CreateTopicSpec("t", -1, 1, assignments={0: [1]}), 42),
        (CreateTopicSpec("t", assignments={1: [1]}), 39),
        (CreateTopicSpec("t", assignments={0: [2]}), 39),
        (CreateTopicSpec("t", assignments={0: []}), 39),
        (CreateTopicSpec("t", assignments={0: [1, 1]}), 39),
        (CreateTopicSpec("x.y", 1), 36),
    ],
)
def test_refused_creations(spec: CreateTopicSpec, code: int) -> None:
    broker = Broker()
    broker.create("x.y")
    assert create_code(broker, spec) == code
    assert list(broker.world.image.topics_by_name) == ["x.y"]


def test_defaults_assignments_and_validate_only() -> None:
    broker = Broker({"num.partitions": "4"})
    planned = broker.settle(broker.world.create_topic(CreateTopicSpec("t", validate_only=True)))
    assert len(planned.registrations) == 4
    assert len(planned.partitions) == 4
    assert not broker.world.image.topics_by_name
    topic_id = uuids.random_id()
    topic = broker.settle(broker.world.create_topic(CreateTopicSpec("t", topic_id=topic_id)))
    assert (len(topic.partitions), topic.topic_id) == (4, topic_id)
    assert create_code(broker, CreateTopicSpec("u", 1, topic_id=topic_id)) == ErrorCode.TOPIC_ALREADY_EXISTS
    manual = broker.settle(broker.world.create_topic(CreateTopicSpec("m", assignments={0: [1], 1: [1]})))
    assert len(manual.partitions) == 2


def test_auto_creation_follows_the_config() -> None:
    """B058."""
    broker = Broker({"num.partitions": "2"})
    assert len(broker.settle(broker.world.ensure_topic("t")).partitions) == 2
    assert broker.world.ensure_topic("t").result() is broker.world.image.topics_by_name["t"]
    assert error_code(broker.world.ensure_topic("..")) == 17
    assert error_code(broker.world.ensure_topic("__mirror_state")) == 3
    off = Broker({"auto.create.topics.enable": "false"})
    assert error_code(off.world.ensure_topic("t")) == 3


def test_growing() -> None:
    broker = Broker()
    topic = broker.create("t", 2)
    promise = broker.world.create_partitions("t", 4)
    assert len(topic.partitions) == 2
    broker.settle(promise)
    assert [p.index for p in topic.partitions] == [0, 1, 2, 3]
    assert error_code(broker.world.create_partitions("t", 4)) == 37
    assert error_code(broker.world.create_partitions("t", 1)) == 37
    assert error_code(broker.world.create_partitions("t", 6, [[1]])) == 39
    assert error_code(broker.world.create_partitions("t", 5, [[9]])) == 39
    assert error_code(broker.world.create_partitions("absent", 5)) == 3
    broker.settle(broker.world.create_partitions("t", 9, validate_only=True))
    broker.crash()
    assert len(broker.world.image.topics_by_name["t"].partitions) == 4
    broker.produce("t", b"x", index=3)


def test_deleting_wakes_waiters_and_removes_files_later() -> None:
    broker = Broker()
    topic = broker.create("t", file__delete__delay__ms="1000")
    broker.produce("t", b"x")
    partition = topic.partitions[0]
    broker.produce("t", b"y", flush=False)
    waiting = partition.when_committed(2)
    woken: list[int] = []
    partition.subscribe(lambda: woken.append(1))
    promise = broker.world.delete_topic("t")
    broker.world.directory.fs.list_dir(DIRECTORY)
    broker.settle(promise)
    assert woken
    assert waiting.done
    with pytest.raises(ApiError) as caught:
        partition.read(0, max_bytes=100)
    assert caught.value.code == 3
    (left,) = [name for name in broker.fs.list_dir(DIRECTORY) if name.startswith("t-0")]
    assert left.endswith("-delete")
    broker.clock.advance(999)
    broker.world.tick()
    assert broker.fs.exists(f"{DIRECTORY}/{left}")
    broker.clock.advance(1)
    broker.world.tick()
    assert not broker.fs.exists(f"{DIRECTORY}/{left}")
    assert error_code(broker.world.delete_topic("t")) == 3


def test_a_recreated_topic_has_a_new_id_and_no_old_data() -> None:
    broker = Broker()
    old = broker.create("t")
    broker.produce("t", b"old")
    broker.settle(broker.world.delete_topic("t"))
    new = broker.create("t")
    assert new.topic_id != old.topic_id
    assert new.partitions[0].log_end_offset == 0
    broker.produce("t", b"new")
    broker.crash()
    assert broker.world.image.topics_by_name["t"].topic_id == new.topic_id
    assert broker.world.partition("t", 0).log_end_offset == 1
    broker.world.tick()
    assert [name for name in broker.fs.list_dir(DIRECTORY) if name.startswith("t-0")] == ["t-0"]


def test_a_deletion_interrupted_before_the_rename_is_finished_at_start() -> None:
    broker = Broker()
    broker.create("t")
    broker.produce("t", b"old")
    withdrawn: list[str] = []

    def power_fails_here(topic: TopicState) -> Promise[None]:
        withdrawn.append(topic.name)
        return Promise.of(None)

    broker.world.withdraw = power_fails_here  # type: ignore[method-assign]
    broker.settle(broker.world.delete_topic("t"))
    assert withdrawn == ["t"]
    assert broker.fs.exists(f"{DIRECTORY}/t-0")
    broker.crash()
    broker.world.tick()
    assert not [name for name in broker.fs.list_dir(DIRECTORY) if name.startswith("t-0")]


def test_unknown_directories_are_kept() -> None:
    broker = Broker()
    broker.fs.make_dirs(f"{DIRECTORY}/t-0")
    broker.fs.write_atomic(f"{DIRECTORY}/t-0/partition.metadata", b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAABQ")
    broker.restart()
    assert broker.fs.exists(f"{DIRECTORY}/t-0")
    broker.create("t")
    broker.produce("t", b"x")
    names = [name for name in broker.fs.list_dir(DIRECTORY) if name.startswith("t-0")]
    assert sorted(name.endswith("-stray") for name in names) == [False, True]


def test_the_name_of_a_long_topic_fits_after_the_rename() -> None:
    broker = Broker()
    name = "a" * 249
    broker.create(name)
    broker.produce(name, b"x")
    broker.settle(broker.world.delete_topic(name))
    (left,) = [entry for entry in broker.fs.list_dir(DIRECTORY) if entry.startswith("aaa")]
    assert len(left) <= 255
    assert left.endswith("-delete")


def test_mirrored_topics_refuse_what_would_break_them() -> None:
    broker = Broker()
    broker.create("t")
    broker.produce("t", b"x")
    broker.world.mirrors.refusals["t"] = "t is mirrored by m"
    assert error_code(broker.world.delete_topic("t")) == 145
    assert error_code(broker.world.create_partitions("t", 2)) == 145
    with pytest.raises(ApiError) as caught:
        broker.world.delete_records("t", 0, 1)
    assert (caught.value.code, caught.value.message) == (145, "t is mirrored by m")
    broker.world.mirrors.refusals.clear()
    broker.settle(broker.world.delete_topic("t"))
    assert broker.world.mirrors.deleted == ["t"]


def test_deletion_can_be_switched_off_and_spares_the_mirrors_state() -> None:
    broker = Broker({"delete.topic.enable": "false"})
    broker.create("t")
    assert error_code(broker.world.delete_topic("t")) == 73
    other = Broker()
    state = other.settle(other.world.topics.ensure_internal("__mirror_state"))
    assert (state.name, len(state.partitions), state.internal) == ("__mirror_state", 50, True)
    assert other.world.topics.ensure_internal("__mirror_state").result() is state
    assert error_code(other.world.delete_topic("__mirror_state")) == 42
    assert not [name for name in other.fs.list_dir(DIRECTORY) if name.startswith("__mirror")], "logs open lazily"


# --- leader epochs ------------------------------------------------------------------------------------------------


def test_an_epoch_is_used_only_when_it_is_on_disk() -> None:
    broker = Broker()
    partition = broker.create("t").partitions[0]
    promise = broker.world.bump_leader_epoch(partition, 7)
    assert partition.leader_epoch == 0
    assert broker.settle(promise) == 8
    assert partition.leader_epoch == 8
    assert broker.settle(broker.world.bump_leader_epoch(partition, 5)) == 8, "above the minimum already"
    broker.restart()
    assert broker.world.partition("t", 0).leader_epoch == 8, "a clean stop keeps it"


def test_unclean_starts_raise_the_epochs_of_writable_partitions() -> None:
    """B034: epochs never go back; mirrored partitions keep theirs."""
    broker = Broker()
    broker.create("t", 2)
    seen = 0
    for _ in range(5):
        broker.produce("t", b"x")
        broker.crash()
        epochs = [broker.world.partition("t", index).leader_epoch for index in (0, 1)]
        assert epochs == [seen + 1, seen + 1]
        seen += 1
    broker.restart()
    assert broker.world.partition("t", 0).leader_epoch == seen


def test_epochs_never_go_back_through_crashes_in_a_bump() -> None:
    for seed in range(20):
        broker = Broker(seed=seed)
        partition = broker.create("t").partitions[0]
        broker.settle(broker.world.bump_leader_epoch(partition, 10))
        broker.world.bump_leader_epoch(partition, 20)
        assert partition.leader_epoch == 11
        broker.crash()
        assert broker.world.partition("t", 0).leader_epoch > 11, f"seed {seed}"


# --- the directory ------------------------------------------------------------------------------------------------


def test_identity_stays_and_is_checked() -> None:
    broker = Broker()
    assert len(broker.world.cluster_id) == 22
    cluster_id = broker.world.cluster_id
    broker.restart()
    assert broker.world.cluster_id == cluster_id
    broker.world.close()
    broker.properties["node.id"] = "5"
    with pytest.raises(ConfigError, match="node 1"):
        broker._open()
    broker.properties.pop("node.id")
    broker._open()


def test_a_second_process_is_refused() -> None:
    broker = Broker()
    with pytest.raises(StorageError):
        broker._open()


def test_damaged_checkpoints_cost_a_recovery_not_the_start() -> None:
    broker = Broker()
    broker.create("t")
    broker.produce("t", b"x")
    broker.world.close()
    broker.fs.write_atomic(f"{DIRECTORY}/recovery-point-offset-checkpoint", b"0\n99\n")
    broker._open()
    assert broker.world.partition("t", 0).log_end_offset == 1


def test_a_recreated_topic_inherits_no_checkpoint() -> None:
    """Found by a random walk: the old log start and recovery point were taken for the new log's."""
    broker = Broker()
    broker.create("t")
    broker.produce("t", *[b"v"] * 10)
    broker.world.delete_records("t", 0, 7)
    broker.restart()
    broker.settle(broker.world.delete_topic("t"))
    broker.create("t")
    assert broker.world.partition("t", 0).log_start_offset == 0
    broker.produce("t", b"v", flush=False)
    broker.crash()
    assert broker.world.partition("t", 0).log_start_offset == 0


def test_a_directory_is_renamed_when_no_flush_uses_it_any_more() -> None:
    """The flush that runs when the deletion becomes durable still writes below the old name."""
    broker = Broker(flush=OverlappingFlush)
    broker.create("t")
    broker.produce("t", b"v")
    partition = broker.world.partition("t", 0)
    deleted = broker.world.delete_topic("t")
    created = broker.world.create_topic(CreateTopicSpec("t", 1))

    def write_once_more() -> None:
        batch = make_batch(b"w", timestamp_ms=broker.clock.time_ms())
        partition.produce(batch, now_ms=broker.clock.time_ms(), acks=-1)

    assert isinstance(broker.flush, OverlappingFlush)
    broker.flush.during_sync = write_once_more
    broker.flush.run()
    assert not broker.fatal
    deleted.result()
    new = created.result()
    assert new.partitions[0].log_end_offset == 0
    assert not broker.world.withdrawing


def test_an_id_that_comes_again_never_gets_the_records_of_its_last_life() -> None:
    """Deleted and made again under the same id, as a mirror does it; the power goes at every operation."""
    topic_id = b"\x07" * 16
    points = 0
    for operation in count(1):
        for keep_nothing in (True, False):
            broker = Broker(seed=operation)
            broker.settle(broker.world.create_topic(CreateTopicSpec("t", 2, topic_id=topic_id)))
            broker.produce("t", b"of its last life")
            with powered_until(broker.fs, operation) as power:
                deleted = broker.world.delete_topic("t")
                made = broker.world.create_topic(CreateTopicSpec("t", 2, topic_id=topic_id))
                broker.flush.run()
                assert deleted.done and made.result().topic_id == topic_id
                assert broker.world.partition("t", 0).leader_epoch == 1
            broker.fs = broker.fs.crash(keep_nothing=keep_nothing)
            broker._open()
            points += 1
            topic = broker.world.image.topics_by_name.get("t")
            if topic is not None and topic_id in broker.world.image.removed_epochs:
                assert topic.partitions[0].log_end_offset == 0, f"operation {operation}"
        if power.lasted:
            break
    assert points > 20
