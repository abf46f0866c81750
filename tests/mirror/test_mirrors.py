"""Mirrors on a whole broker: topics coming and going, patterns, growth, takeovers, configs, the data path."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kmirror.broker import mirror_seam as seam
from kmirror.broker.config_admin import ConfigOp
from kmirror.broker.mirror_describe import StateWrite
from kmirror.broker.mirror_waiting import write_configs
from kmirror.effects import Promise
from kmirror.errors import ApiError
from kmirror.mirror.desired import associations, visible
from kmirror.mirror.states import Desired
from kmirror.protocol import uuids
from kmirror.protocol.errors import ErrorCode
from kmirror.protocol.records import Record, build_batch
from kmirror.storage.log import LogMode
from tests.sim.clusters import Cluster, Pump


def pair(**configs: str) -> tuple[Cluster, Cluster, Pump]:
    source = Cluster("a", seed=1)
    destination = Cluster("b", seed=2, clock=source.clock)
    destination.create_mirror(source, **configs)
    return source, destination, Pump(destination, source, broker_id=1)


def mirroring(**configs: str) -> tuple[Cluster, Cluster, Pump]:
    source, destination, pump = pair(**configs)
    source.create_topic()
    source.produce(b"1")
    destination.start(source)
    pump.run()
    return source, destination, pump


def code(promise: object) -> int:
    with pytest.raises(ApiError) as refused:
        promise.result()  # type: ignore[attr-defined]
    return refused.value.code


# -- create, list, delete ---------------------------------------------------------------------------------------------


def test_create_refusals() -> None:
    source, destination, _ = pair()
    mirrors = destination.mirrors
    good = {"bootstrap.servers": "h:1", "source.cluster.id": "c"}
    assert code(mirrors.create("m", good)) == ErrorCode.CLUSTER_MIRROR_ALREADY_EXISTS
    assert code(mirrors.create("a/b", good)) == ErrorCode.INVALID_REQUEST
    assert code(mirrors.create("n", {"bootstrap.servers": "h:1"})) == ErrorCode.INVALID_REQUEST
    assert code(mirrors.create("n", {**good, "gap.action": "ignore"})) == ErrorCode.INVALID_CONFIG
    assert code(mirrors.create("n", {**good, "topics.include": "a("})) == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert code(mirrors.start("nobody", [])) == ErrorCode.UNKNOWN_CLUSTER_MIRROR
    assert code(mirrors.delete("nobody")) == ErrorCode.UNKNOWN_CLUSTER_MIRROR
    source.create_topic()
    destination.start(source)
    assert [row.topic_names for row in mirrors.list()] == [["t"]]
    assert mirrors.list(name="x") == [] and mirrors.list(source_cluster_id="x") == []
    assert [row.topic_names for row in mirrors.list(desired=["STOPPED"])] == [[]]


def test_delete_writes_tombstones_keeps_lineage_and_frees_the_topic() -> None:
    source, destination, _ = mirroring()
    assert code(destination.mirrors.delete("m")) == ErrorCode.CLUSTER_MIRROR_NOT_EMPTY
    destination.stop()
    destination.settle(destination.mirrors.delete("m"))
    assert destination.mirrors.list() == [] and destination.world.image.mirror_configs == {}
    (entry,) = destination.mirrors.image.entries.values()
    assert entry.recorded is None and entry.lineage is not None and entry.lineage.last_mirror_offset == 1
    destination.crash()
    assert destination.partition().mode is LogMode.WRITABLE
    # another mirror of the same cluster, under another name, goes on from that lineage
    destination.create_mirror(source, "again")
    promise = destination.start(source, mirror="again")
    Pump(destination, source, "again", broker_id=1).run()
    assert promise.result()[0].error_code == 0
    assert destination.row().state == "MIRRORING" and destination.data() == source.data()
    assert [key[0] for key in destination.mirrors.image.entries] == ["again"]


# -- topics -----------------------------------------------------------------------------------------------------------


def test_patterns_discover_and_exclude() -> None:
    source, destination, pump = pair(topics__include="orders-.*", topics__exclude="orders-internal")
    for name in ("orders-us", "orders-internal", "payments"):
        source.create_topic(name)
        source.produce(b"x", topic=name)
    pump.run()
    assert sorted(destination.mirrors.topics) == ["orders-us"]
    source.create_topic("orders-jp")
    pump.refresh()
    pump.run()
    assert sorted(destination.mirrors.topics) == ["orders-jp", "orders-us"]
    destination.stop("orders-us")
    pump.refresh()
    pump.run()
    assert destination.row("orders-us").state == "STOPPED"
    result = destination.settle(destination.mirrors.stop("m", [], ["orders-j.*"]))
    assert [(one.name, one.error_code) for one in result] == [("orders-jp", 0)]
    assert destination.row("orders-jp").state == "STOPPED"
    bad = destination.mirrors.start("m", [seam.StartTopic(name="orders-internal")], exclude=["orders-internal"])
    assert code(bad) == ErrorCode.INVALID_REQUEST


def test_the_topic_has_the_source_s_id_and_count_and_grows() -> None:
    source, destination, pump = pair()
    source.create_topic("t", 2)
    destination.start(source)
    pump.run()
    topic = destination.world.image.topics_by_name["t"]
    assert topic.topic_id == source.world.image.topics_by_name["t"].topic_id
    assert len(topic.partitions) == 2
    with pytest.raises(ApiError) as refused:
        destination.settle(destination.world.create_partitions("t", 3))
    assert refused.value.code == ErrorCode.INVALID_CLUSTER_MIRROR_STATE
    source.settle(source.world.create_partitions("t", 4))
    source.produce(b"new", index=3)
    pump.refresh()
    assert [p.mode for p in topic.partitions] == [LogMode.READ_ONLY] * 4
    pump.run()
    assert destination.data("t", 3) == source.data("t", 3) != b""
    assert destination.row("t", 3).state == "MIRRORING"


def test_topics_that_exist_here() -> None:
    source, destination, pump = pair()
    source.create_topic()
    destination.create_topic()
    assert destination.start(source).result()[0].error_code == ErrorCode.INCONSISTENT_TOPIC_ID
    wanted = seam.StartTopic(name="t", num_partitions=1)  # a source without topic ids
    destination.produce(b"mine")
    promise = destination.mirrors.start("m", [wanted])
    destination.calm()
    pump.run()
    refused = promise.result()[0]
    assert refused.error_code == ErrorCode.INVALID_CLUSTER_MIRROR_STATE and "1 offset " in (refused.error_message or "")
    assert destination.produce(b"still mine") == 1
    assert "t" not in destination.mirrors.topics


def test_deleting_the_topic_forgets_everything_about_it() -> None:
    source, destination, pump = mirroring(topics__include="t.*")
    with pytest.raises(ApiError) as refused:
        destination.settle(destination.world.delete_topic("t"))
    assert refused.value.code == ErrorCode.INVALID_CLUSTER_MIRROR_STATE
    destination.stop()
    destination.settle(destination.world.delete_topic("t"))
    assert destination.mirrors.image.entries == {} and destination.mirrors.topics == {}
    pump.refresh()
    pump.run()
    assert "t" not in destination.world.image.topics_by_name, "it was discovered again"
    configs = destination.world.image.mirror_configs["m"]
    assert associations(configs) == [] and "t" in visible(configs)["topics.exclude"].split(",")
    assert source.partition().log.log_end_offset == 1


def test_takeover_by_another_mirror_of_another_cluster() -> None:
    source, destination, _ = mirroring()
    other = Cluster("x", seed=3, clock=source.clock)
    other.create_topic()
    destination.create_mirror(other, "other")
    pump = Pump(destination, other, "other", broker_id=5)
    topic_id = source.world.image.topics_by_name["t"].topic_id
    wanted = [seam.StartTopic(name="t", topic_id=topic_id, num_partitions=1)]
    taken = destination.settle(destination.mirrors.start("other", wanted))[0]
    assert taken.error_code == ErrorCode.TOPIC_ALREADY_IN_CLUSTER_MIRROR
    destination.stop()
    promise = destination.mirrors.start("other", wanted)
    destination.calm()
    pump.run()
    refused = promise.result()[0]
    assert refused.error_code == ErrorCode.INVALID_CLUSTER_MIRROR_STATE  # no lineage with that cluster
    assert destination.partition().mode is LogMode.WRITABLE
    promise = destination.mirrors.start("other", wanted, replace=True)
    destination.calm()
    pump.run()
    done = promise.result()[0]
    assert done.error_code == 0 and destination.mirrors.topics["t"][0].name == "other"
    assert destination.partition().mode is LogMode.READ_ONLY
    assert {key[0] for key in destination.mirrors.image.entries} == {"other"}
    destination.crash()
    assert destination.mirrors.topics["t"][0].name == "other"
    assert destination.partition().mode is LogMode.READ_ONLY
    wrong = destination.settle(destination.mirrors.stop("m", ["t", "nothing"]))
    assert [one.error_code for one in wrong] == [
        ErrorCode.TOPIC_NOT_IN_CLUSTER_MIRROR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]


def test_a_topic_in_no_mirror() -> None:
    _, destination, _ = pair()
    destination.create_topic("plain")
    for promise in (
        destination.mirrors.stop("m", ["plain"]),
        destination.mirrors.pause("m", ["plain"]),
        destination.mirrors.resume("gone", ["plain"]),
    ):
        assert destination.settle(promise)[0].error_code == ErrorCode.UNKNOWN_CLUSTER_MIRROR


# -- configs ----------------------------------------------------------------------------------------------------------


def test_topic_configs_follow_and_leave_with_the_source_s() -> None:
    source, destination, pump = mirroring()
    configs = {"retention.ms": "100002", "min.insync.replicas": "2", "flush.messages": "9"}
    source.settle(source.world.configs.write(2, "t", dict(configs)))
    destination.settle(destination.world.configs.write(2, "t", {"segment.bytes": "2000000"}))
    pump.sync_configs()
    assert destination.world.image.topics_by_name["t"].configs == {"retention.ms": "100002", "segment.bytes": "2000000"}
    assert destination.partition().log.config.retention_ms == 100002
    assert "synced" not in str(visible(destination.world.image.mirror_configs["m"]))
    source.settle(source.world.configs.write(2, "t", {"retention.ms": None}))
    destination.crash()
    pump.sync_configs()
    assert destination.world.image.topics_by_name["t"].configs == {"segment.bytes": "2000000"}
    destination.settle(destination.mirrors.pause("m", ["t"]))
    assert destination.mirrors.config_topics("m") == []


def test_connection_settings_begin_a_new_link_others_do_not() -> None:
    source, destination, _ = mirroring()
    before = destination.mirrors.links()["m"].generation

    def alter(name: str, value: str) -> None:
        destination.settle(destination.world.alter_configs(64, "m", [ConfigOp(name, 0, value)]))

    alter("groups.include", "g.*")
    assert destination.mirrors.links()["m"].generation == before
    alter("bootstrap.servers", "elsewhere:9")
    link = destination.mirrors.links()["m"]
    assert link.generation == before + 1 and link.bootstrap_servers == "elsewhere:9"
    for name, value in (("source.cluster.id", "x"), ("desired.state.x", "x"), ("fetch.max.bytes", "many")):
        with pytest.raises(ApiError) as refused:
            alter(name, value)
        assert refused.value.code == ErrorCode.INVALID_CONFIG
    names = [entry.name for entry in destination.world.describe_configs(64, "m")]
    assert "gap.action" in names and not [n for n in names if n.startswith(("desired", "synced"))]
    destination.stop()
    assert destination.mirrors.links() == {}, "a mirror with nothing to do needs no connection"
    assert source.reachable


def test_a_paused_topic_gets_no_settings() -> None:
    source, destination, _ = mirroring()
    destination.settle(destination.mirrors.pause("m", ["t"]))
    destination.mirrors.source_configs("m", {"t": {"retention.ms": "77777"}})
    destination.flush.run()
    assert destination.world.image.topics_by_name["t"].configs == {}
    assert source.reachable


def old_and_mirrored(**configs: str) -> tuple[Cluster, Pump]:
    """A copy of a topic with a year-old record."""
    source, destination, pump = pair()
    source.create_topic(**configs)
    source.produce(b"old")
    destination.start(source)
    pump.run()
    source.clock.advance(365 * 86_400_000)
    source.produce(b"new")
    pump.run()
    assert destination.partition().log.log_end_offset == 2
    return destination, pump


def keeps_all(destination: Cluster) -> bool:
    destination.world.apply_retention()
    destination.calm()
    return destination.partition().log.log_start_offset == 0


def test_retention_waits_for_the_settings_of_the_source() -> None:
    destination, pump = old_and_mirrored(**{"retention.ms": "-1"})
    assert keeps_all(destination)
    destination.restart()
    assert keeps_all(destination)
    pump.sync_configs()
    assert keeps_all(destination) and destination.partition().log.config.retention_ms == -1


@pytest.mark.parametrize("how", ["told", "not allowed", "error", "stopped"])
def test_retention_goes_by_what_is_known(how: str) -> None:
    destination, pump = old_and_mirrored()
    if how == "told":
        pump.sync_configs()
    elif how == "stopped":
        destination.stop()
    else:
        refusal = ErrorCode.TOPIC_AUTHORIZATION_FAILED if how == "not allowed" else ErrorCode.UNKNOWN_SERVER_ERROR
        destination.mirrors.source_configs_refused("m", {"t": refusal})
    assert keeps_all(destination) == (how == "error")


# -- surprises --------------------------------------------------------------------------------------------------------


def test_a_topic_made_anew_is_told_from_a_deleted_one() -> None:
    source, destination, pump = mirroring()
    ours = source.world.image.topics_by_name["t"].topic_id
    source.settle(source.world.delete_topic("t"))
    pump.refresh()
    pump.refresh()
    assert destination.row().error == "The source topic is deleted."
    source.create_topic()
    theirs = source.world.image.topics_by_name["t"].topic_id
    pump.refresh()
    row = destination.row()
    assert row.retry is not None and not row.retry.retryable
    assert "re-created" in (row.error or "")
    assert uuids.to_text(ours) in (row.error or "") and uuids.to_text(theirs) in (row.error or "")
    written = destination.mirrors.read_states("m", {"t": [0]})[0].state_epoch
    pump.refresh()
    assert destination.mirrors.read_states("m", {"t": [0]})[0].state_epoch == written, "recorded once"


def test_a_start_learns_at_once_that_the_source_is_another_cluster() -> None:
    source, destination, pump = mirroring()
    destination.stop()
    source.world.cluster_id = "another-cluster-id-xxx"
    promise = destination.start(source)
    pump.refresh()
    (result,) = promise.result()
    assert result.error_code == ErrorCode.INVALID_CLUSTER_MIRROR_STATE and "another-cluster" in result.error_message
    assert destination.produce(b"still writable") > 0


def test_a_record_written_while_a_start_is_prepared_refuses_it() -> None:
    """Between the plan and PREPARING the local transactions are ended; the count is taken again after that."""
    source, destination, pump = mirroring()
    destination.stop()
    ended: Promise[None] = Promise()

    promise = destination.start(source)
    destination.mirrors.end_transactions = lambda topic, partitions: ended  # type: ignore[method-assign]
    pump.refresh()
    (lineage,) = destination.mirrors.queries("m")
    destination.mirrors.answered(lineage, pump.answer(lineage))
    destination.partition().produce(build_batch([Record(value=b"late")], timestamp_ms=0), now_ms=0, acks=-1)
    destination.flush.run()
    pump.run()
    assert not promise.done and destination.partition().mode is LogMode.DRAINING
    ended.resolve(None)
    destination.flush.run()
    (result,) = promise.result()
    assert result.error_code == ErrorCode.INVALID_CLUSTER_MIRROR_STATE
    assert destination.partition().mode is LogMode.WRITABLE and destination.row().state == "STOPPED"


def test_the_source_s_log_start_is_not_followed_below_the_cut_of_a_restart() -> None:
    source, destination, pump = mirroring()
    source.produce(b"2")
    pump.run()
    destination.stop()
    destination.start(source)
    pump.run()
    assert destination.row().state == "MIRRORING"
    source.partition().advance_log_start(1)
    pump.run()
    assert destination.partition().log_start_offset == 0, "it would erase our history"
    source.produce(b"3", b"4")
    pump.run()
    source.partition().advance_log_start(3)
    source.produce(b"5")
    pump.run()
    assert destination.partition().log_start_offset == 3, "beyond the cut it is followed"


def test_records_of_a_mirror_that_is_gone_are_tombstoned_at_boot() -> None:
    """A crash between the removal of a mirror's configuration and the tombstones of its states."""
    source, destination, _ = mirroring()
    destination.stop()
    configs = destination.world.image.mirror_configs["m"]
    destination.settle(write_configs(destination.mirrors, [("m", name, None) for name in configs]))
    destination.crash()
    (entry,) = destination.mirrors.image.entries.values()
    assert entry.recorded is None and entry.lineage is not None, "lineage outlives the mirror"
    assert destination.partition().mode is LogMode.WRITABLE
    assert source.reachable


# -- the data path ----------------------------------------------------------------------------------------------------


def test_what_the_source_may_not_send() -> None:
    _, destination, pump = mirroring()
    mirrors = destination.mirrors
    (item,) = mirrors.plan_fetch("m", 1)

    def told(records: bytes, **fields: int) -> str | None:
        answer = seam.FetchAnswer(records=records, high_watermark=9, log_start_offset=0, **fields)
        return mirrors.examine("m", item, answer).refusal

    def batch(offset: int, epoch: int = 0) -> bytes:
        return build_batch([Record(value=b"v")], base_offset=offset, leader_epoch=epoch, timestamp_ms=0)

    assert told(batch(1)) is None and told(b"") is None and told(batch(5)) is None
    assert "below" in (told(batch(0)) or "")
    assert "epoch 1" in (told(batch(1, epoch=1)) or "")
    assert "damaged" in (told(bytes(80)) or "")
    assert "format 3" in (told(batch(1)[:16] + b"\x03" + batch(1)[17:]) or "")
    assert "damaged" in (told(batch(1)[:16] + b"\x01" + batch(1)[17:]) or "")
    assert told(batch(1) + batch(2)[:-3]) is None  # a partial batch at the end is nothing
    broken = batch(1)[:-1] + b"\xff"
    mirrors.apply(mirrors.examine("m", item, seam.FetchAnswer(records=broken, high_watermark=2, log_start_offset=0)))
    row = destination.row()
    assert row.state == "FAILED" and row.retry is not None and row.retry.retryable
    assert destination.partition().log.log_end_offset == 1
    assert mirrors.plan_fetch("m", 1) == []
    destination.tick(200)
    pump.run()
    assert destination.row().state == "MIRRORING"


def test_the_next_fetch_is_planned_before_the_last_is_applied() -> None:
    source, destination, _ = mirroring()
    for n in range(4):
        source.produce(f"{n}".encode())
    mirrors, pump = destination.mirrors, Pump(destination, source, broker_id=1)
    (item,) = mirrors.plan_fetch("m", 1)
    pump.max_bytes = 1
    one = mirrors.examine("m", item, pump.serve(item))
    (ahead,) = mirrors.plan_fetch("m", 1, after=[one])
    assert (item.fetch_offset, ahead.fetch_offset) == (1, 2)
    answer = pump.serve(ahead)
    mirrors.apply(one)
    two = mirrors.examine("m", ahead, answer)
    assert two.accepted
    mirrors.apply(two)
    mirrors.apply(two)  # a second time: stale, dropped
    assert destination.partition().log.log_end_offset == 3


def refused_batch(destination: Cluster, pump: Pump, records: bytes) -> seam.PartitionRow:
    """What becomes of a partition whose source sends this."""
    mirrors = destination.mirrors
    (item,) = mirrors.plan_fetch("m", 1)
    answer = seam.FetchAnswer(records=records, high_watermark=9, log_start_offset=0)
    mirrors.apply(mirrors.examine("m", item, answer))
    return destination.row()


@pytest.mark.parametrize("damage", ["checksum", "length"])
def test_what_lies_before_a_damaged_batch_is_kept(damage: str) -> None:
    source, destination, pump = mirroring()
    for n in range(3):
        source.produce(f"good {n}".encode())
    good = pump.serve(destination.mirrors.plan_fetch("m", 1)[0]).records
    bad = bytearray(build_batch([Record(value=b"bad")], base_offset=4, leader_epoch=0, timestamp_ms=0))
    bad[-1 if damage == "checksum" else 8] ^= 0xFF
    row = refused_batch(destination, pump, bytes(good) + bytes(bad))
    assert destination.data() == source.data() and destination.partition().log.log_end_offset == 4
    if damage == "length":  # seen in the headers: the answer ends before it, and the next begins with it
        assert row.state == "MIRRORING"
        row = refused_batch(destination, pump, bytes(bad))
    assert row.state == "FAILED" and "offset 4" in (row.error or "")
    assert row.retry is not None and row.retry.retryable
    assert destination.data() == source.data()


def test_a_batch_newer_than_the_metadata_waits_and_asks_again() -> None:
    _, destination, pump = mirroring()
    newer = build_batch([Record(value=b"v")], base_offset=1, leader_epoch=1, timestamp_ms=0)
    row = refused_batch(destination, pump, newer)
    assert row.state == "MIRRORING" and "epoch 1" in (row.error or "")
    assert destination.mirrors.metadata_requested("m") and destination.mirrors.plan_fetch("m", 1) == []


def test_a_batch_across_our_end_is_divergence() -> None:
    _, destination, pump = mirroring()
    across = build_batch([Record(value=b"v")] * 3, base_offset=0, leader_epoch=0, timestamp_ms=0)
    row = refused_batch(destination, pump, across)
    assert row.state == "FAILED" and row.retry is not None and not row.retry.retryable
    assert "reaches across our end at 1" in (row.error or "")


def test_a_fetch_is_applied_only_under_its_own_lease() -> None:
    source, destination, pump = mirroring()
    mirrors = destination.mirrors
    source.produce(b"2")
    (item,) = mirrors.plan_fetch("m", 1)
    answer = pump.serve(item)
    for changes in ({"number": item.lease.number - 1}, {"generation": item.lease.generation - 1}, {"offset": 0}):
        stale = replace(item, lease=replace(item.lease, **changes))
        examined = mirrors.examine("m", stale, answer)
        assert not examined.accepted and examined.refusal == "stale"
    machine = mirrors.topics["t"][1].partitions[0].machine
    machine.desired = Desired.PAUSED  # no longer wished, whatever the lease says
    assert mirrors.examine("m", item, answer).refusal == "stale"
    machine.desired = Desired.MIRRORING
    late = mirrors.examine("m", item, answer)
    assert late.accepted
    source.bump()
    pump.refresh()
    pump.round()  # agreed and fetched under the new epoch
    assert destination.data() == source.data()
    mirrors.apply(late)
    assert destination.row().state == "MIRRORING" and destination.data() == source.data()
    source.produce(b"3")
    (item,) = mirrors.plan_fetch("m", 1)
    late = mirrors.examine("m", item, pump.serve(item))
    destination.settle(destination.mirrors.pause("m", ["t"]))
    mirrors.apply(late)
    assert destination.row().state == "PAUSED" and destination.partition().log.log_end_offset == 2


def test_lag_is_never_negative() -> None:
    """The source's high watermark as last told may be older than what we have appended since."""
    source, destination, pump = mirroring()
    source.produce(b"2")
    pump.run()
    mirrors = destination.mirrors
    (item,) = mirrors.plan_fetch("m", 1)
    mirrors.apply(mirrors.examine("m", item, seam.FetchAnswer(records=b"", high_watermark=1, log_start_offset=0)))
    row = destination.row()
    assert (row.source_offset, row.destination_offset, row.lag) == (1, 2, 0)


def test_an_idle_partition_is_planned_anew_when_anything_changed() -> None:
    source, destination, pump = mirroring()
    mirrors = destination.mirrors
    (first,) = mirrors.plan_fetch("m", 1)
    assert mirrors.plan_fetch("m", 1)[0] is first
    source.produce(b"2")
    one = mirrors.examine("m", first, pump.serve(first))
    (ahead,) = mirrors.plan_fetch("m", 1, after=[one])
    assert ahead.fetch_offset == 2
    (again,) = mirrors.plan_fetch("m", 1)
    assert again.fetch_offset == 1, "what was examined may never be applied"
    mirrors.apply(one)
    assert mirrors.plan_fetch("m", 1)[0].fetch_offset == 2
    destination.settle(
        destination.world.alter_configs(
            64, "m", [ConfigOp("fetch.max.bytes", 0, "77"), ConfigOp("fetch.response.max.bytes", 0, "77")]
        )
    )
    assert mirrors.plan_fetch("m", 1)[0].max_bytes == 77
    assert mirrors.plan_fetch("m", 2) == []
    destination.settle(destination.mirrors.pause("m", ["t"]))
    assert mirrors.plan_fetch("m", 1) == []


# -- for other nodes --------------------------------------------------------------------------------------------------


def test_states_read_and_written() -> None:
    _, destination, _ = mirroring()
    mirrors = destination.mirrors
    (row,) = mirrors.read_states("m", {"t": [0]})
    assert (row.state, row.error_code) == (3, 0)

    def write(**fields: int) -> tuple[int, int]:
        (one,) = destination.settle(mirrors.write_states("m", [StateWrite(topic="t", partition=0, **fields)]))
        return one.error_code, one.state_epoch

    assert write(state=3, leader_epoch=row.leader_epoch - 1)[0] == ErrorCode.FENCED_LEADER_EPOCH
    assert write(state=3, state_epoch=row.state_epoch - 1)[0] == ErrorCode.FENCED_STATE_EPOCH
    assert write(state=7)[0] == ErrorCode.INVALID_CLUSTER_MIRROR_STATE
    assert write(state=5) == (0, row.state_epoch)  # not a valid transition: no record and no error
    assert write(state=3, state_epoch=row.state_epoch) == (0, row.state_epoch + 1)
    assert destination.partition().mode is LogMode.READ_ONLY
    (offsets,) = mirrors.read_offsets("m", {"t": [0]})
    assert (offsets.source_offset, offsets.destination_offset) == (1, 1)
    ((_, _, bumped),) = mirrors.bump_leader_epochs([("t", 0, 90)])
    assert not isinstance(bumped, ApiError) and destination.settle(bumped) == 91
