"""The power goes before and after every write, truncation, rename and sync of a failover, and of an alignment's cut.

After each cut the broker boots from what survived and goes on by itself; the laws of a stop must hold: what was
answered stays answered, one ABORT per open transaction, one reset, the mirrored bytes up to the LMO untouched. A sync
that lies is planted to see that the matrix would notice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from kmirror.coordinator.groups.offsets import OffsetValue
from kmirror.protocol import uuids
from kmirror.protocol.records import control_type, parse_header, walk
from kmirror.storage.log import LogMode
from tests.power_cut import powered_until
from tests.sim.clusters import TOPIC, Cluster, Pump


@dataclass
class Scene:
    source: Cluster
    destination: Cluster
    pump: Pump


def transactional(source: Cluster, producer_id: int, value: bytes) -> None:
    source.produce(value, producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True)


def mirrored(**configs: str) -> Scene:
    """Three plain records and two open transactions, all mirrored."""
    source = Cluster("a", seed=11, at_once=False)
    destination = Cluster("b", seed=12, clock=source.clock, at_once=False)
    source.create_topic()
    destination.create_mirror(source, **configs)
    destination.start(source)
    source.produce(b"1", b"2")
    transactional(source, 4002, b"open")
    source.produce(b"3")
    transactional(source, 4001, b"open too")
    pump = Pump(destination, source)
    pump.run()
    assert destination.row().lag == 0
    return Scene(source, destination, pump)


def stopped_and_written_to() -> Scene:
    """Failed over, one own record since; the source went on."""
    scene = mirrored()
    scene.destination.stop()
    scene.destination.produce(b"own")
    scene.source.produce(b"more")
    return scene


def matrix(
    make: Callable[[], Scene],
    act: Callable[[Scene], bool],
    check: Callable[[Scene, bytes, bool], None],
    *,
    skip_sync: Callable[[str], bool] | None = None,
    every: int = 1,
) -> int:
    """Run `act` with the power cut at operation 1, 2, 3, ... until it runs through. Returns how many points there were.

    `act` says whether the caller got its answer.
    """
    operation = 0
    while True:
        operation += every
        for keep_nothing in (True, False):
            scene = make()
            before = scene.destination.data()
            if skip_sync is not None:
                scene.destination.fs.skip_sync = skip_sync
            answered = False
            with powered_until(scene.destination.fs, operation) as power:
                answered = act(scene)
            scene.destination.lazy = False
            scene.destination.crash(keep_nothing=keep_nothing)
            check(scene, before, answered)
            if power.lasted and keep_nothing:
                return operation


# -- the failover ----------------------------------------------------------------------------------------------------


def stop(scene: Scene) -> bool:
    promise = scene.destination.stop()
    return bool(promise.done and promise.result()[0].error_code == 0)


def check_stop(scene: Scene, before: bytes, answered: bool) -> None:
    destination = scene.destination
    if answered:
        assert destination.row().state == "STOPPED", "an answered stop was lost"
        assert destination.partition().mode is LogMode.WRITABLE
    elif destination.row().state != "STOPPED":
        assert destination.partition().mode is not LogMode.WRITABLE
    destination.tick(10_000)
    again = destination.stop()
    assert again.result()[0].error_code == 0
    check_sealed(destination, before, lmo=5, aborts=[4001, 4002])
    assert again.result()[0].partitions[0].aborted_transactions == 2
    assert destination.produce(b"new") == 8


def check_sealed(destination: Cluster, before: bytes, *, lmo: int, aborts: list[int]) -> None:
    log = destination.partition().log
    row = destination.row()
    assert (row.state, row.last_mirror_epoch, row.last_mirror_offset) == ("STOPPED", 0, lmo)
    assert destination.data()[: len(before)] == before, "mirrored bytes were lost"
    behind = [
        (control_type(data), header.producer_id, header.leader_epoch)
        for header, data in log.batches(lmo, log.log_end_offset)
    ]
    assert [(kind, pid) for kind, pid, _ in behind] == [*((0, pid) for pid in aborts), (7, -1)]
    assert all(0 < epoch <= destination.partition().leader_epoch for _, _, epoch in behind)
    assert log.producers.ongoing() == []


def test_power_cuts_in_every_step_of_a_stop() -> None:
    points = matrix(mirrored, stop, check_stop)
    print(f"{points} points")
    assert points > 30


def test_power_cuts_in_a_stop_whose_data_was_not_on_disk_yet() -> None:
    """The LME may stand only for bytes that are on disk, whatever survived of the rest."""

    def make() -> Scene:
        scene = mirrored()
        scene.destination.lazy = True
        scene.source.produce(b"late")
        scene.pump.run(3)
        assert scene.destination.partition().log.log_end_offset == 6
        scene.destination.lazy = False
        return scene

    def check(scene: Scene, before: bytes, answered: bool) -> None:
        destination = scene.destination
        if answered:
            assert destination.row().state == "STOPPED"
        destination.tick(10_000)
        assert destination.stop().result()[0].error_code == 0
        lmo = destination.row().last_mirror_offset
        assert lmo in ((6,) if answered else (5, 6))
        kept = before if lmo == 6 else b"".join(batch for batch in whole_batches(before) if batch_offset(batch) < 5)
        check_sealed(destination, kept, lmo=lmo, aborts=[4001, 4002])

    assert matrix(make, stop, check) > 20


def whole_batches(data: bytes) -> list[bytes]:
    return [data[at : at + header.size_bytes] for at, header in walk(data)]


def batch_offset(batch: bytes) -> int:
    return parse_header(batch).base_offset


@pytest.mark.parametrize("lying", ["t-0/00000000000000000000.log", "__mirror_state-0/00000000000000000000.log"])
def test_a_sync_that_lies_is_noticed(lying: str) -> None:
    with pytest.raises(AssertionError):
        matrix(mirrored_lying(lying), stop, check_stop, skip_sync=lambda path: path.endswith(lying))


def mirrored_lying(lying: str) -> Callable[[], Scene]:
    """The lie begins before the data is mirrored, so that bytes can be lost at all."""

    def make() -> Scene:
        scene = mirrored()
        scene.destination.fs.skip_sync = lambda path: path.endswith(lying)
        scene.source.produce(b"not on disk")
        scene.pump.run()
        return scene

    return make


# -- an alignment's cut ----------------------------------------------------------------------------------------------


def replace(scene: Scene) -> bool:
    promise = scene.destination.start(scene.source, replace=True)
    for _ in range(3):
        scene.pump.round()
    return bool(promise.done and promise.result()[0].error_code == 0)


def check_replaced(scene: Scene, before: bytes, answered: bool) -> None:
    destination = scene.destination
    state = destination.row().state
    if answered:
        assert state in ("PREPARING", "MIRRORING"), f"an answered start was lost: {state}"
    writable = destination.partition().mode is LogMode.WRITABLE
    assert writable == (state == "STOPPED")
    if state == "STOPPED" and destination.mirrors.topics["t"][1].association.desired.value == "STOPPED":
        assert destination.data() == before, "a start that was not accepted changed the log"
        destination.start(scene.source, replace=True)
    scene.pump.run()
    destination.tick(10_000)
    scene.pump.run()
    row = destination.row()
    assert (row.state, row.lag, row.last_mirror_offset) == ("MIRRORING", 0, None)
    assert destination.data() == scene.source.data()
    saved = b""
    for name in destination.fs.list_dir("/data/cut/t-0"):
        for file in destination.fs.list_dir(f"/data/cut/t-0/{name}"):
            saved += destination.fs.read_file(f"/data/cut/t-0/{name}/{file}")
    cut = [batch for batch in whole_batches(before) if batch not in whole_batches(destination.data())]
    assert cut and b"".join(cut) in saved, "what was cut was not kept"


def test_power_cuts_in_every_step_of_a_restart() -> None:
    points = matrix(stopped_and_written_to, replace, check_replaced)
    print(f"{points} points")
    assert points > 30


def test_power_cuts_when_a_stop_finishes_an_alignments_cut() -> None:
    """Start with --replace, and a stop right behind it; both may be cut anywhere."""

    def act(scene: Scene) -> bool:
        scene.destination.lazy = True
        scene.destination.start(scene.source, replace=True)
        scene.pump.round()
        scene.destination.lazy = False
        return stop(scene)

    def check(scene: Scene, before: bytes, answered: bool) -> None:
        destination = scene.destination
        if answered:
            assert destination.row().state == "STOPPED"
        destination.tick(10_000)
        result = destination.stop().result()[0]
        assert result.error_code == 0
        log = destination.partition().log
        assert log.producers.ongoing() == []
        lineage = destination.row().last_mirror_offset
        assert lineage is not None
        resets = [h.base_offset for h, d in log.batches(lineage, log.log_end_offset) if control_type(d) == 7]
        assert len(resets) == 1

    assert matrix(stopped_and_written_to, act, check) > 20


# -- the way back ----------------------------------------------------------------------------------------------------


GROUP = "readers"


def failed_over_and_parted() -> Scene:
    """`a` was mirrored by `b`, which has failed over; both have written since. A group at `a` has read all of it."""
    scene = mirrored()
    a, b = scene.source, scene.destination
    b.stop()
    b.produce(b"of b")
    a.produce(b"private")
    a.produce(b"private too")
    a.settle(a.world.groups.offsets.usable())
    end = a.partition().log_end_offset
    a.settle(a.world.groups.offsets.commit_synced(GROUP, {(TOPIC, 0): OffsetValue(offset=end, leader_epoch=0)}))
    a.create_mirror(b, "back")
    return Scene(b, a, Pump(a, b, "back"))


def fail_back(scene: Scene) -> bool:
    promise = scene.destination.start(scene.source, mirror="back")
    for _ in range(3):
        scene.pump.round()
    return bool(promise.done and promise.result()[0].error_code == 0)


def check_failed_back(scene: Scene, before: bytes, answered: bool) -> None:
    destination = scene.destination
    topic = destination.mirrors.topics.get(TOPIC)
    if topic is None:
        assert not answered, "an answered start was lost"
        assert destination.data() == before and destination.partition().mode is LogMode.WRITABLE
        destination.start(scene.source, mirror="back")
    else:
        assert destination.partition().mode is not LogMode.WRITABLE
    scene.pump.run()
    destination.tick(10_000)
    scene.pump.run()
    assert (destination.row().state, destination.row().lag) == ("MIRRORING", 0)
    assert destination.data() == scene.source.data()
    saved = b""
    for name in destination.fs.list_dir("/data/cut/t-0"):
        for file in destination.fs.list_dir(f"/data/cut/t-0/{name}"):
            saved += destination.fs.read_file(f"/data/cut/t-0/{name}/{file}")
    cut = [batch for batch in whole_batches(before) if batch not in whole_batches(destination.data())]
    assert len(cut) == 2 and b"".join(cut) in saved, "what was cut was not kept"
    offsets = destination.world.groups.offsets
    (value,) = destination.settle(offsets.fetch(GROUP, [((TOPIC, 0), uuids.ZERO)], require_stable=False))
    assert value.offset == 5, "a committed offset beyond the cut did not move to it"


def test_power_cuts_in_every_step_of_a_failback() -> None:
    points = matrix(failed_over_and_parted, fail_back, check_failed_back)
    print(f"{points} points")
    assert points > 30
