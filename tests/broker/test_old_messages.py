"""Message sets of magic 0 and 1 through a whole broker: mirrored, served to every version of Fetch, found by time and
epoch, over restarts and crashes, byte for byte. Their parts: `tests/storage/test_old_messages.py`.
"""

from __future__ import annotations

import pytest

from kmirror.broker.partition import LATEST
from kmirror.mirror.states import State
from kmirror.protocol.records import walk
from kmirror.storage.log import LogMode
from tests.broker.harness import Broker
from tests.broker.test_fetch import Fetcher, bytes_of
from tests.mirror.test_mirrors import pair
from tests.storage.test_old_messages import NAMES, dumped, raw


@pytest.mark.parametrize("name", NAMES)
def test_every_version_of_fetch_gets_the_bytes(name: str) -> None:
    """From 4 on, which is all there is; Kafka 4 converts nothing either."""
    broker = Broker()
    broker.create("t")
    data = raw(name)
    partition = broker.world.partition("t", 0)
    partition.set_mode(LogMode.READ_ONLY)
    partition.append_replicated(data)
    broker.flush.run()
    end = dumped(name)[-1][0] + 1
    firsts = {header.base_offset: data[position : position + header.size_bytes] for position, header in walk(data)}
    for again in (lambda: None, broker.restart, broker.crash):
        again()
        assert broker.world.partition("t", 0).list_offset(LATEST)[0] == end
        for version in range(4, 19):
            if version < 10 and "zstd" in name:
                continue
            for isolation_level in (0, 1):
                fetcher = Fetcher(broker, version)
                answer = fetcher.fetch({("t", 0): 0}, session_epoch=-1, isolation_level=isolation_level)
                (row,) = fetcher.rows(answer).values()
                assert (row.error_code, row.high_watermark, bytes_of(row)) == (0, end, data)
        for last, whole in firsts.items():
            answer = Fetcher(broker).fetch({("t", 0): last}, session_epoch=-1, partition_max_bytes=1)
            (row,) = fetcher.rows(answer).values()
            assert bytes_of(row) == whole
        assert broker.world.partition("t", 0).end_offset_for_epoch(0) in ((-1, -1), (0, end))


@pytest.mark.parametrize("name", NAMES)
def test_mirrored_and_gone_on_with(name: str) -> None:
    """A source whose log begins with them and has batches behind; the mirror is the same, and becomes writable."""
    source, destination, pump = pair()
    source.create_topic()
    partition = source.partition()
    partition.set_mode(LogMode.READ_ONLY)
    partition.append_replicated(raw(name))
    partition.set_mode(LogMode.WRITABLE)
    source.flush.run()
    source.produce(b"new")
    destination.start(source)
    pump.run()
    assert destination.row().state == State.MIRRORING.name
    assert destination.data() == source.data()
    destination.crash()
    source.produce(b"newer")
    pump.run()
    assert destination.data() == source.data()
    destination.settle(destination.stop())
    end = destination.partition().log_end_offset
    assert destination.produce(b"own") == end
    destination.restart()
    assert destination.data().startswith(source.data())
