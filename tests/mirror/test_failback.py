"""The way back in parts: which lineage counts, what the source's answer means, what a refusal leaves behind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kmirror.broker import mirror_seam as seam
from kmirror.broker.mirror_waiting import write_configs
from kmirror.coordinator.groups.offsets import OffsetValue
from kmirror.effects import Promise
from kmirror.errors import ApiError
from kmirror.mirror import desired as wishes
from kmirror.mirror.alignment import Case, Intended, Lineage, Refused, classify
from kmirror.mirror.desired import associations
from kmirror.mirror.facts import Numbers
from kmirror.mirror.states import Desired, State
from kmirror.protocol import uuids
from kmirror.protocol.api.describe_cluster_mirrors import (
    DescribeClusterMirrorsResponse,
    DescribedMirror,
    DescribedMirrorPartition,
    DescribedMirrorTopic,
)
from kmirror.protocol.errors import ErrorCode
from kmirror.source.questions import lineage_of, lineage_request
from kmirror.storage.log import LogMode
from tests.sim.clusters import TOPIC, Cluster, Pump

US = "our-cluster"


def there(*, at_once: bool = True) -> tuple[Cluster, Cluster, Pump]:
    """`home` was mirrored by `away`, which has failed over and has a record of its own. The pump leads back."""
    home = Cluster("home", seed=1, at_once=at_once)
    away = Cluster("away", seed=2, clock=home.clock, at_once=at_once)
    home.create_topic()
    home.produce(b"1", b"2")
    away.create_mirror(home, "there")
    away.start(home, mirror="there")
    Pump(away, home, "there", broker_id=1).run()
    away.stop(mirror="there")
    away.produce(b"of away")
    home.create_mirror(away, "back")
    return home, away, Pump(home, away, "back", broker_id=2)


def answer_of(pump: Pump, promise: Any) -> Any:
    pump.run()
    (result,) = promise.result()
    return result


# -- which lineage counts ---------------------------------------------------------------------------------------------


LOG = Numbers(log_end_offset=20, epoch_entries=[(1, 0), (4, 8), (6, 15)])


@pytest.mark.parametrize(
    ("own", "reported", "case", "cut"),
    [
        (None, (4, 12), Case.FAILBACK, 12),
        (None, (4, 18), Case.FAILBACK, 15),  # the epoch ends before
        (None, (2, 18), Case.FAILBACK, 8),  # an epoch that is not here
        (None, (-1, 0), Case.FAILBACK, 0),  # an empty partition was failed over
        (None, (4, -1), Case.FAILBACK, 15),  # a source that knows epochs only
        (None, (9, 30), Case.FAILBACK, 20),  # we have lost our tail
        ((4, 12), None, Case.RESTART, 12),
        ((4, 12), (6, 17), Case.FAILBACK, 17),
        ((6, 17), (4, 12), Case.RESTART, 17),
        ((4, 12), (4, 12), Case.RESTART, 12),
    ],
)
def test_the_larger_last_mirror_offset_wins(own: Any, reported: Any, case: Case, cut: int) -> None:
    lineages = [None if pair is None else Lineage(*pair, US) for pair in (own, reported)]
    plan = classify(LOG, mirrored=False, own=lineages[0], reported=lineages[1], force=False)
    assert plan == Intended(case, cut, own_only=own is not None)


def test_own_lineage_brings_the_refusal_of_records_that_are_ours_alone() -> None:
    facts = Numbers(log_end_offset=20, epoch_entries=[(1, 0), (4, 8)], foreign_from=[19])
    for own, refused in ((Lineage(4, 12), True), (None, False)):
        plan = classify(facts, mirrored=False, own=own, reported=Lineage(4, 15), force=False)
        assert isinstance(plan, Refused) is refused
        if isinstance(plan, Refused):
            assert plan.offsets == 5


def test_lineage_of_another_cluster_under_the_same_name_says_nothing() -> None:
    home, away, _ = there()
    away.settle(away.mirrors.delete("there"))
    other = Cluster("other", seed=7, clock=home.clock)
    topic = home.world.image.topics_by_name[TOPIC]
    away.settle(away.mirrors.create("there", {"bootstrap.servers": "x", "source.cluster.id": other.world.cluster_id}))
    pump = Pump(away, other, "there")
    other.create_topic()
    wanted = [seam.StartTopic(name=TOPIC, topic_id=topic.topic_id, num_partitions=1)]
    promise = away.mirrors.start("there", wanted)
    away.calm()
    result = answer_of(pump, promise)
    assert result.error_code == ErrorCode.INVALID_CLUSTER_MIRROR_STATE
    assert "no lineage with this source" in result.error_message


# -- what the source answers ------------------------------------------------------------------------------------------


def response(*mirrors: tuple[str, str, str, int, int]) -> DescribeClusterMirrorsResponse:
    """(mirror, its source cluster, state, LME, LMO), all of partition t-0."""
    return DescribeClusterMirrorsResponse(
        mirrors=[
            DescribedMirror(
                mirror_name=name,
                source_cluster_id=cluster_id,
                topics=[
                    DescribedMirrorTopic(
                        topic_name=TOPIC,
                        partitions=[
                            DescribedMirrorPartition(state_value=state, last_mirror_epoch=lme, last_mirror_offset=lmo)
                        ],
                    )
                ],
            )
            for name, cluster_id, state, lme, lmo in mirrors
        ]
    )


QUERY = seam.LineageQuery(
    id=1, mirror="m", topic=TOPIC, topic_id=uuids.ZERO, partition=0, leader=1, current_leader_epoch=0, cluster_id=US
)


def test_reading_the_lookup() -> None:
    none = lineage_of(response(), QUERY)
    assert none == seam.LineageAnswer()
    both = [("x", US, "STOPPED", 3, 7), ("y", US, "STOPPED", 2, 9), ("z", "another", "MIRRORING", 5, 50)]
    assert lineage_of(response(*both), QUERY) == seam.LineageAnswer(
        last_mirror_epoch=2, last_mirror_offset=9, mirror="y", state="STOPPED"
    )
    active = lineage_of(response(*both, ("w", US, "FAILED", 1, 1)), QUERY)
    assert isinstance(active, seam.LineageAnswer) and (active.mirror, active.state) == ("w", "FAILED")
    other = response(("x", US, "STOPPED", 3, 7))
    other.mirrors[0].topics[0].partitions[0].partition_index = 1
    assert lineage_of(other, QUERY) == none
    refused = response(("x", US, "STOPPED", 3, 7))
    refused.mirrors[0].error_code = 144
    answer = lineage_of(refused, QUERY)
    assert isinstance(answer, seam.ErrorAnswer) and answer.code == 144 and "'x'" in answer.message
    assert lineage_of(DescribeClusterMirrorsResponse(error_code=35), QUERY) == seam.LineageAnswer(supported=False)
    assert isinstance(lineage_of(DescribeClusterMirrorsResponse(error_code=31), QUERY), seam.ErrorAnswer)


def test_one_request_asks_for_all_partitions() -> None:
    request = lineage_request(US, [("t", 0), ("u", 3), ("t", 2)])
    assert request.mirror_names is None and request.cluster_id == US
    assert request.topics is not None
    assert {topic.topic_name: topic.partitions for topic in request.topics} == {"t": [0, 2], "u": [3]}


def test_an_error_of_the_lookup_is_asked_again_and_told_when_time_is_over() -> None:
    home, away, pump = there()
    pump.alter = lambda query: seam.ErrorAnswer(code=31) if isinstance(query, seam.LineageQuery) else None
    promise = home.start(away, mirror="back")
    for _ in range(3):
        pump.run(2)
        home.tick(2_000)
    assert not promise.done
    home.tick(60_000)
    (result,) = promise.result()
    assert result.error_code == ErrorCode.REQUEST_TIMED_OUT and "error 31" in result.error_message
    assert home.partition().mode is LogMode.WRITABLE and home.produce(b"goes on") == 2


def test_a_source_that_cannot_be_asked_is_copied_one_way() -> None:
    home, away, pump = there()
    pump.capable = False
    result = answer_of(pump, home.start(away, mirror="back"))
    assert result.error_code == ErrorCode.INVALID_CLUSTER_MIRROR_STATE and "2 offsets" in result.error_message
    result = answer_of(pump, home.start(away, mirror="back", replace=True))
    assert result.error_code == 0
    pump.run()
    assert home.data() == away.data()


def test_a_start_of_a_topic_that_the_source_does_not_have() -> None:
    home, _, pump = there()
    home.create_topic("only-here")
    home.produce(b"x", topic="only-here")
    promise = home.mirrors.start("back", [seam.StartTopic(name="only-here", num_partitions=1)])
    home.calm()
    result = answer_of(pump, promise)
    assert (
        result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and "the source has no topic" in result.error_message
    )
    assert home.partition("only-here").mode is LogMode.WRITABLE


# -- what a start leaves behind ---------------------------------------------------------------------------------------


def test_what_was_refused_is_not_begun_later_by_itself() -> None:
    home, away, pump = there()
    first = Pump(away, home, "there", broker_id=1)
    away.start(home, mirror="there", replace=True)
    first.run()
    assert away.row().state == "MIRRORING"
    result = answer_of(pump, home.start(away, mirror="back"))
    assert result.error_code == ErrorCode.INVALID_CLUSTER_MIRROR_STATE and "loop" in result.error_message
    assert home.mirrors.mirrors["back"].lists.include == ()
    away.stop(mirror="there")
    pump.refresh()
    pump.run()
    assert TOPIC not in home.mirrors.topics and home.produce(b"mine") > 0


def test_a_start_with_replace_takes_the_place_of_one_without() -> None:
    home, away, pump = there()
    home.settle(home.mirrors.delete("back"))
    home.create_mirror(away, "back")
    first = home.start(away, mirror="back")
    second = home.start(away, mirror="back", replace=True)
    third = home.start(away, mirror="back")
    assert first.result()[0].error_code == ErrorCode.INVALID_CLUSTER_MIRROR_STATE
    assert answer_of(pump, second).error_code == 0 and third.result()[0].error_code == 0


def test_a_capped_peer_erases_nothing_here_even_after_a_failure() -> None:
    """Failback, FAILED, started again: the history below the first cut is still ours."""
    home, away, pump = there()
    home.start(away, mirror="back")
    pump.run()
    assert home.row().state == "MIRRORING"
    away.partition().advance_log_start(1)
    away.reachable = False
    pump.refresh()
    pump.run(2)
    away.produce(b"x")
    home.tick(1)
    assert home.row().state == "FAILED"
    home.start(away, mirror="back")
    away.reachable = True
    pump.refresh()
    pump.run()
    away.produce(b"y")
    pump.run()
    assert home.row().state == "MIRRORING" and home.row().lag == 0
    assert home.partition().log_start_offset == 0
    away.partition().advance_log_start(3)  # behind the cut at 2: that is the source's own retention
    away.produce(b"z")
    pump.run()
    assert home.partition().log_start_offset == 3


def test_a_partition_left_stopped_by_a_crash_begins_with_another_start() -> None:
    """The wish is on disk, the plan is refused after the crash: the topic is wanted, and its partition STOPPED."""
    home, away, pump = there()
    home.start(away, mirror="back")
    pump.run()
    home.stop(mirror="back")
    association = home.mirrors.topics[TOPIC][1].association
    wanted = wishes.encode(replace(association, desired=Desired.MIRRORING))
    home.settle(write_configs(home.mirrors, [("back", wishes.config_name(association.topic_id), wanted)]))
    home.produce(b"ours alone")
    home.restart()
    pump.run()
    assert home.row().state == "STOPPED" and "would be cut" in (home.row().error or "")
    assert home.partition().mode is LogMode.WRITABLE
    again = answer_of(pump, home.start(away, mirror="back"))
    assert again.error_code == ErrorCode.INVALID_CLUSTER_MIRROR_STATE
    assert answer_of(pump, home.start(away, mirror="back", replace=True)).error_code == 0
    pump.run()
    assert home.row().state == "MIRRORING" and home.data() == away.data()


def test_the_source_s_topic_id_is_learnt_when_the_start_named_none() -> None:
    source, destination = Cluster("a"), Cluster("b", seed=2)
    source.create_topic()
    topic_id = source.world.image.topics_by_name[TOPIC].topic_id
    destination.create_mirror(source)
    pump = Pump(destination, source)
    destination.settle(destination.mirrors.start("m", [seam.StartTopic(name=TOPIC, num_partitions=1)]))
    pump.refresh()
    (recorded,) = associations(destination.world.image.mirror_configs["m"])
    assert recorded.source_topic_id == topic_id
    source.settle(source.world.delete_topic(TOPIC))
    source.create_topic()
    destination.restart()
    pump.refresh()
    assert "re-created" in (destination.row().error or "")


# -- beside the topic -------------------------------------------------------------------------------------------------


def test_committed_offsets_beyond_the_cut_move_to_it() -> None:
    home, away, pump = there()
    home.produce(b"private 1", b"private 2")
    offsets = home.world.groups.offsets
    home.settle(offsets.usable())
    committed = {(TOPIC, 0): OffsetValue(offset=4, leader_epoch=0, metadata="m")}
    home.settle(offsets.commit_synced("beyond", committed))
    home.settle(offsets.commit_synced("inside", {(TOPIC, 0): OffsetValue(offset=1, leader_epoch=0, metadata="m")}))
    home.start(away, mirror="back")
    pump.run()
    assert home.row().state == "MIRRORING"
    for group, offset in (("beyond", 2), ("inside", 1)):
        values = home.settle(offsets.fetch(group, [((TOPIC, 0), uuids.ZERO)], require_stable=False))
        assert values[0].offset == offset
    home.crash(keep_nothing=True)
    values = home.settle(home.world.groups.offsets.fetch("beyond", [((TOPIC, 0), uuids.ZERO)], require_stable=False))
    assert values[0].offset == 2


def test_a_takeover_keeps_the_lineage_until_it_has_aligned() -> None:
    """Another mirror of the same cluster: the old name's record counts, for us and for whoever asks, until the new
    name has recorded MIRRORING."""
    home, away, _ = there()
    away.create_mirror(home, "other")
    pump = Pump(away, home, "other", broker_id=1)
    home.reachable = False
    promise = away.start(home, mirror="other", replace=True)
    pump.run(2)
    away.stop(mirror="other")
    assert promise.result()[0].error_code
    back = Pump(home, away, "back", broker_id=2)
    home.reachable = True
    lookup = seam.LineageQuery(
        id=1, mirror="back", topic=TOPIC, topic_id=uuids.ZERO, partition=0, leader=1, current_leader_epoch=0,
        cluster_id=home.world.cluster_id,
    )  # fmt: skip
    found = back.answer(lookup)
    assert isinstance(found, seam.LineageAnswer) and (found.mirror, found.last_mirror_offset) == ("there", 2)
    away.start(home, mirror="other", replace=True)
    pump.run()
    assert away.row().state == "MIRRORING" and {key[0] for key in away.mirrors.image.entries} == {"other"}
    found = back.answer(lookup)
    assert isinstance(found, seam.LineageAnswer) and (found.mirror, found.state) == ("other", "MIRRORING")
    away.stop(mirror="other")
    found = back.answer(lookup)
    assert isinstance(found, seam.LineageAnswer)
    assert (found.mirror, found.state, found.last_mirror_offset) == ("other", "STOPPED", 2)


def test_recover_leaves_alone_what_never_began() -> None:
    home, away, pump = there()
    home.start(away, mirror="back")
    pump.run()
    partition = home.mirrors.topics[TOPIC][1].partitions[0]
    assert home.settle(home.mirrors.recover("back", [TOPIC]))[0].error_code == 0
    assert partition.state is State.MIRRORING
    results = home.settle(home.mirrors.recover("back", ["nothing"]))
    assert results[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert home.settle(home.mirrors.recover("gone", [TOPIC]))[0].error_code == ErrorCode.TOPIC_NOT_IN_CLUSTER_MIRROR


def test_what_moved_and_what_was_cut_is_told() -> None:
    home, away, pump = there()
    home.produce(b"private")
    home.start(away, mirror="back")
    pump.run()
    row = home.row()
    assert row.cut_offsets == 1 and row.cut_saved is not None
    assert row.copied_bytes == len(away.data()) - len(home.data()[: len(home.data()) - row.copied_bytes])
    assert 0 < row.copied_bytes < len(home.data())
    (name,) = home.fs.list_dir("/data/cut/t-0")
    assert row.cut_saved.endswith(name)
    assert [file.endswith(".log") for file in home.fs.list_dir(f"/data/cut/t-0/{name}")] == [True]


def test_lineage_is_not_told_any_more_once_another_cluster_s_alignment_is_decided() -> None:
    home, away, _ = there()
    other = Cluster("other", seed=9, clock=home.clock)
    other.create_topic()
    other.produce(b"of the other")
    away.create_mirror(other, "other")
    pump = Pump(away, other, "other", broker_id=3)
    back = Pump(home, away, "back", broker_id=2)
    lookup = seam.LineageQuery(
        id=1, mirror="back", topic=TOPIC, topic_id=uuids.ZERO, partition=0, leader=1, current_leader_epoch=0,
        cluster_id=home.world.cluster_id,
    )  # fmt: skip
    promise = away.mirrors.start("other", [seam.StartTopic(name=TOPIC, num_partitions=1)], replace=True)
    away.calm()
    pump.refresh()
    seen: dict[str, list[seam.Answer]] = {}
    away.on_outcome = lambda out: seen.setdefault(away.row().state, []).append(back.answer(lookup))
    pump.run()
    assert promise.result()[0].error_code == 0 and away.row().state == "MIRRORING"
    assert {getattr(answer, "mirror", None) for answer in seen["STOPPED"]} == {"there"}, "until then it stands"
    assert len(seen["PREPARING"]) > 3 and all(answer == seam.LineageAnswer() for answer in seen["PREPARING"])


def test_every_cut_keeps_its_own_copy() -> None:
    """Also a cut at the same offset as an earlier one, by a mirror that was deleted and made anew."""
    home, away, pump = there()
    for number in range(3):
        home.produce(f"private {number}".encode())
        promise = home.start(away, mirror="back", replace=True)
        pump.run()
        assert promise.result()[0].error_code == 0
        home.stop(mirror="back")
        home.settle(home.mirrors.delete("back"))
        home.create_mirror(away, "back")
    saved = b"".join(
        home.fs.read_file(f"/data/cut/t-0/{directory}/{name}")
        for directory in home.fs.list_dir("/data/cut/t-0")
        for name in home.fs.list_dir(f"/data/cut/t-0/{directory}")
    )
    for number in range(3):
        assert f"private {number}".encode() in saved


def test_local_transactions_end_before_anything_is_counted_or_cut() -> None:
    home, away, pump = there()
    asked: list[tuple[str, int, LogMode]] = []
    ended: Promise[None] = Promise()

    class Coordinator:
        def end_for_alignment(self, topic: str, partition: int) -> Promise[None]:
            asked.append((topic, partition, home.partition().mode))
            return ended

    home.world._transactions = Coordinator()  # type: ignore[assignment]
    promise = home.start(away, mirror="back")
    pump.run()
    assert asked == [(TOPIC, 0, LogMode.DRAINING)] and not promise.done
    with pytest.raises(ApiError) as refused:
        home.produce(b"too late")
    assert refused.value.code == ErrorCode.READ_ONLY_TOPIC
    home.end_transaction(77, commit=True)  # markers of the coordinator still come in
    ended.resolve(None)
    home.calm()
    pump.run()
    assert promise.result()[0].error_code == 0 and home.data() == away.data()
