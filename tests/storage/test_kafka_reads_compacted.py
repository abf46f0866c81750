"""Apache Kafka's own dump tool reads what our cleaner leaves: every record, every index entry, no complaint."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from conformance.peers.fixtures import kafka_installation  # noqa: F401 (a fixture)
from conformance.peers.kafka import KafkaInstallation
from kmirror.protocol.records import BatchHeader
from kmirror.storage.log import Log
from tests.storage.test_compaction import DAY_MS, DIRECTORY, History, stored

pytestmark = pytest.mark.kafka
VERSION = "4.4.0"
SEEDS = range(6)


def compacted(seed: int, place: Path) -> History:
    """A log after three rounds, one of them behind the delete horizon, written out to `place`."""
    history = History.begin(seed)
    cleaned_up_to = -1
    for _ in range(3):
        for _ in range(60):
            history.step()
        history.log.roll()
        history.step()
        cleaned_up_to = history.clean(cleaned_up_to)
        history.clock.advance(DAY_MS + 1)
    history.log.close(clean=True)
    place.mkdir()
    for name in history.fs.list_dir(DIRECTORY):
        if not name.endswith(".deleted"):
            (place / name).write_bytes(history.fs.read_file(f"{DIRECTORY}/{name}"))
    return history


def test_the_dump_tool_agrees(
    kafka_installation: Callable[[str], KafkaInstallation],  # noqa: F811
    tmp_path: Path,
) -> None:
    kafka = kafka_installation(VERSION)
    histories = {tmp_path / f"t-{seed}": compacted(seed, tmp_path / f"t-{seed}") for seed in SEEDS}
    files = [str(path) for place in histories for path in sorted(place.glob("*.log"))]
    output = kafka.tool("dump-log", "--deep-iteration", "--print-data-log", "--files", ",".join(files)).stdout
    assert "isvalid: false" not in output
    seen: dict[Path, set[int]] = {place: set() for place in histories}
    for block in output.split("Dumping ")[1:]:
        place = Path(block.splitlines()[0]).parent
        control = [re.search(r"isControl: (\w+)", line) for line in block.splitlines() if line.startswith("baseOffset")]
        assert all(control)
        for line in block.splitlines():
            found = re.match(r"\| offset: (\d+) ", line)
            if found and "endTxnMarker" not in line and "Control record" not in line and "type:" not in line:
                seen[place].add(int(found[1]))
    for place, history in histories.items():
        data = set(stored(reopened(history)))
        assert data <= seen[place], place
    assert any(header.delete_horizon_ms is not None for h in histories.values() for header in headers(h))
    assert any(not header.record_count for h in histories.values() for header in headers(h))
    indexes = [str(path) for place in histories for path in sorted(place.glob("*index"))]
    checked = kafka.tool("dump-log", "--index-sanity-check", "--files", ",".join(indexes))
    complaints = [line for line in (checked.stdout + checked.stderr).splitlines() if re.search(r"rror|ismatch", line)]
    assert not complaints
    assert checked.stdout.count("passed sanity check") >= len([name for name in indexes if name.endswith(".index")])


def reopened(history: History) -> Log:
    history.reopen()
    return history.log


def headers(history: History) -> list[BatchHeader]:
    return [header for header, _ in history.log.batches(0, history.log.log_end_offset)]
