"""A broker world on a file system in memory, with a manual clock and a flush port that runs when told to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from kmirror.broker.config import BrokerConfig
from kmirror.broker.durability import Done, InlineFlush
from kmirror.broker.metadata import TopicState
from kmirror.broker.topic_admin import CreateTopicSpec
from kmirror.broker.topic_config import ConfigEntry
from kmirror.broker.world import World
from kmirror.clock import ManualClock
from kmirror.effects import Promise
from kmirror.errors import ApiError
from kmirror.protocol.records import Record, build_batch
from kmirror.storage.flush import FlushTicket
from kmirror.storage.log import Log
from kmirror.storage.memory import MemoryFileSystem

T = TypeVar("T")
DIRECTORY = "/data"


class QuietMirrors:
    """Mirroring with nothing mirrored; `refusals` makes topics look like mirrors."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.refusals: dict[str, str] = {}
        self.deleted: list[str] = []
        self.changed: list[str] = []

    def recovered(self) -> None:
        return None

    def change_refusal(self, topic_name: str) -> str | None:
        return self.refusals.get(topic_name)

    def check_configs(self, mirror: str, wanted: Mapping[str, str], changed: set[str]) -> None:
        if "bad" in wanted:
            raise ApiError(40, "bad")

    def config_kind(self, name: str) -> int | None:
        return 7 if name == "topics.include" else 2

    def describe_configs(self, mirror: str) -> list[ConfigEntry]:
        return [ConfigEntry(name, value, 1, 2) for name, value in self.world.image.mirror_configs[mirror].items()]

    def configs_changed(self, mirror: str) -> None:
        self.changed.append(mirror)

    def topic_deleted(self, topic: TopicState) -> None:
        self.deleted.append(topic.name)


class OverlappingFlush(InlineFlush):
    """Rounds that overlap as those of the commit thread do: the next one's tickets are taken before the callbacks of
    the one that ended, and synced after them."""

    during_sync: Done | None = None
    """Called once while a round is being synced."""

    def run(self) -> None:
        tickets = self._take()
        while tickets:
            hook, self.during_sync = self.during_sync, None
            if hook is not None:
                hook()
            for _log, ticket, _callbacks in tickets:
                if ticket is not None:
                    ticket.sync()
            following = self._take()
            for log, ticket, callbacks in tickets:
                if ticket is not None:
                    log.finish_flush(ticket)
                for done in callbacks:
                    done()
            tickets = following or self._take()

    def _take(self) -> list[tuple[Log, FlushTicket | None, list[Done]]]:
        waiting, self._waiting = self._waiting, {}
        return [(log, log.begin_flush(), callbacks) for log, callbacks in waiting.values()]


class Broker:
    def __init__(
        self,
        properties: Mapping[str, str] | None = None,
        *,
        seed: int = 1,
        mirrors: Any = QuietMirrors,
        flush: type[InlineFlush] = InlineFlush,
    ) -> None:
        self.seed = seed
        self._flush_kind = flush
        self.fs = MemoryFileSystem(seed=seed)
        self.clock = ManualClock()
        self.properties = dict(properties or {})
        self.mirrors = mirrors
        self.fatal: list[BaseException] = []
        self.flush: InlineFlush
        self.world: World
        self._open()

    def _open(self) -> None:
        self.flush = self._flush_kind(fatal=self.fatal.append)
        config = BrokerConfig.from_properties(self.properties)
        self.world = World.open(
            self.fs, DIRECTORY, config, self.clock, self.flush, fatal=self.fatal.append, mirrors=self.mirrors
        )

    def restart(self) -> None:
        self.flush.run()
        self.world.close(clean=True)
        self._open()

    def crash(self) -> None:
        """A power cut: only what could have survived is there."""
        self.fs = self.fs.crash()
        self._open()

    def settle(self, promise: Promise[T]) -> T:
        self.flush.run()
        return promise.result()

    def create(self, name: str, partition_count: int = 1, **configs: str) -> TopicState:
        """Configs as keyword arguments, with `__` for a dot: segment__bytes."""
        named: dict[str, str | None] = {key.replace("__", "."): value for key, value in configs.items()}
        return self.settle(self.world.create_topic(CreateTopicSpec(name, partition_count, configs=named)))

    def produce(self, topic: str, *values: bytes, index: int = 0, flush: bool = True, **batch: Any) -> int:
        """Append one batch; the base offset."""
        partition = self.world.partition(topic, index)
        result = partition.produce(
            make_batch(*values, timestamp_ms=self.clock.time_ms(), **batch), now_ms=self.clock.time_ms(), acks=-1
        )
        if flush:
            self.flush.run()
        return result.base_offset


def make_batch(*values: bytes, **batch: Any) -> bytes:
    return build_batch([Record(value=value) for value in values], **batch)


def error_code(promise: Promise[Any]) -> int:
    """The code a promise failed with; 0 when it did not."""
    try:
        promise.result()
    except ApiError as error:
        return error.code
    return 0
