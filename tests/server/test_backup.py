"""The Backup request: what is asked, what is answered, and that nobody else notices."""

from __future__ import annotations

from typing import Any

import pytest

from kmirror.broker.chores import Steps
from kmirror.protocol.api.api_versions import ApiVersionsRequest
from kmirror.protocol.api.backup import BackupRequest, BackupResponse
from kmirror.protocol.errors import ErrorCode
from kmirror.protocol.private_numbers import BACKUP
from kmirror.storage.memory import MemoryFileSystem
from tests.server.harness import Broker, Client, batch, fetch, produce, serving

pytestmark = pytest.mark.usefixtures("autojump_clock")
DESTINATION = "/copies/one"


def filesystem() -> MemoryFileSystem:
    fs = MemoryFileSystem()
    fs.make_dirs("/copies")
    return fs


class Slow:
    """Chores that wait until the test lets them go on."""

    def __init__(self) -> None:
        self._steps: list[Steps] = []

    def run(self, steps: Steps) -> None:
        self._steps.append(steps)

    def go_on(self) -> None:
        for steps in self._steps:
            for _ in steps:
                pass
        self._steps.clear()


async def ask(client: Client, **parts: Any) -> BackupResponse:
    answer = await client.ask("Backup", 0, BackupRequest(**parts))
    assert isinstance(answer, BackupResponse)
    return answer


async def to_the_end(client: Client, answer: BackupResponse) -> BackupResponse:
    for _ in range(100):
        if answer.done:
            return answer
        answer = await ask(client, backup_id=answer.backup_id, wait_ms=100)
    raise AssertionError("it does not end")


async def filled(broker: Broker) -> None:
    await broker.create_topic("t")
    client = broker.connect()
    for number in range(5):
        answer = await client.ask("Produce", 9, produce(batch(b"%d" % number)))
        assert answer.responses[0].partition_responses[0].error_code == 0
    client.close()


async def test_a_backup_is_made_and_another_broker_starts_on_it() -> None:
    fs = filesystem()
    async with serving(filesystem=fs) as broker:
        await filled(broker)
        client = broker.connect(same_host=True)
        begun = await ask(client, destination=DESTINATION, wait_ms=60_000)
        ended = await to_the_end(client, begun)
        assert (ended.error_code, ended.error_message) == (0, None)
        assert ended.partition_count == 2 and ended.linked_bytes + ended.copied_bytes == ended.total_bytes > 300
        assert (await client.ask("Produce", 9, produce(batch(b"later")))).responses[0].partition_responses[
            0
        ].error_code == 0
        again = await ask(client, backup_id=ended.backup_id, wait_ms=0)
        assert again == ended, "the last one is remembered"
        async with serving({"log.dirs": DESTINATION}, filesystem=fs) as other:
            answer = await other.connect().ask("Fetch", 12, fetch())
            assert answer.responses[0].partitions[0].high_watermark == 5
            assert other.world.cluster_id == broker.world.cluster_id


@pytest.mark.parametrize(
    ("parts", "code", "reason"),
    [
        ({"destination": "relative"}, ErrorCode.INVALID_REQUEST, "not an absolute path"),
        ({}, ErrorCode.INVALID_REQUEST, "not an absolute path"),
        ({"destination": "/data/x"}, ErrorCode.INVALID_REQUEST, "inside the data directory"),
        ({"backup_id": b"x" * 16}, ErrorCode.RESOURCE_NOT_FOUND, "no such backup"),
        ({"backup_id": b"x" * 16, "stop": True}, ErrorCode.RESOURCE_NOT_FOUND, "no such backup"),
    ],
)
async def test_refusals(parts: dict[str, Any], code: int, reason: str) -> None:
    async with serving(filesystem=filesystem()) as broker:
        client = broker.connect(same_host=True)
        answer = await to_the_end(client, await ask(client, **parts))
        assert answer.error_code == code and reason in (answer.error_message or "")


async def test_only_from_the_brokers_own_host() -> None:
    fs = filesystem()
    async with serving(filesystem=fs) as broker:
        answer = await ask(broker.connect(), destination=DESTINATION)
        assert answer.done and answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert "give the command there" in (answer.error_message or "") and fs.list_dir("/copies") == []


async def test_a_second_one_is_refused_while_the_first_is_made_and_can_stop_it() -> None:
    fs = filesystem()
    async with serving(filesystem=fs) as broker:
        await filled(broker)
        one, two = broker.connect(same_host=True), broker.connect(same_host=True)
        slow = Slow()
        broker.world.chores = slow
        begun = await ask(one, destination=DESTINATION)
        assert not begun.done
        refused = await ask(two, destination="/copies/two")
        assert refused.done and refused.error_code == ErrorCode.DUPLICATE_RESOURCE
        await ask(two, backup_id=begun.backup_id, stop=True)
        slow.go_on()
        stopped = await to_the_end(one, await ask(one, backup_id=begun.backup_id))
        assert stopped.error_code == ErrorCode.INVALID_REQUEST and "stopped" in (stopped.error_message or "")
        assert fs.list_dir("/copies") == [] and not any("backup" in name for name in fs.list_dir("/data"))
        begun = await ask(two, destination="/copies/two")
        slow.go_on()
        assert (await to_the_end(two, begun)).error_code == 0


async def test_nobody_is_told_of_the_request() -> None:
    async with serving() as broker:
        answer = await broker.connect().ask("ApiVersions", 3, ApiVersionsRequest())
        assert BACKUP not in {row.api_key for row in answer.api_keys}
        client = broker.connect(same_host=True)
        await client.send_bytes(bytes.fromhex("0000000a") + BACKUP.to_bytes(2, "big") + b"\0\1" + b"\0" * 6)
        assert await client.is_closed(), "a version that is not served"
