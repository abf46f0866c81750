"""A mirror from start to failover between two worlds, and the worked example of the KIP byte for byte."""

from __future__ import annotations

import pytest

from kmirror.errors import ApiError
from kmirror.protocol.errors import ErrorCode
from tests.sim.clusters import Cluster, Pump


def mirrored(*values: bytes) -> tuple[Cluster, Cluster, Pump]:
    source = Cluster("a", seed=1)
    destination = Cluster("b", seed=2, clock=source.clock)
    source.create_topic()
    for value in values:
        source.produce(value)
    destination.create_mirror(source)
    assert destination.start(source).result()[0].error_code == 0
    pump = Pump(destination, source)
    pump.run()
    return source, destination, pump


def test_bytes_are_the_same_and_writes_are_refused() -> None:
    source, destination, _ = mirrored(b"1", b"2", b"3")
    row = destination.row()
    assert (row.state, row.lag, row.error) == ("MIRRORING", 0, None)
    assert destination.data() == source.data()
    with pytest.raises(ApiError) as refused:
        destination.produce(b"x")
    assert refused.value.code == ErrorCode.READ_ONLY_TOPIC
    assert "'m'" in str(refused.value)


def test_stop_seals_and_makes_it_writable() -> None:
    source, destination, pump = mirrored(b"1", b"2", b"3")
    source.produce(b"late")
    result = destination.stop().result()[0]
    assert result.error_code == 0, result
    assert destination.row().state == "STOPPED"
    row = destination.row()
    assert (row.last_mirror_epoch, row.last_mirror_offset) == (0, 3)
    partition = destination.partition()
    assert partition.log.log_end_offset == 4
    assert destination.produce(b"own") == 4
    pump.run()
    assert partition.log.log_end_offset == 5
