"""The log that the model test compares with: a plain list of batches, and what follows from them, written anew.

Nothing here shares code with the product but the reading of headers. Offsets are absolute; a batch is its bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kmirror.protocol.records import BatchHeader, control_type, coordinator_epoch, parse_header, read_records


@dataclass
class Batch:
    data: bytes
    header: BatchHeader = field(init=False)

    def __post_init__(self) -> None:
        self.header = parse_header(self.data)

    @property
    def base(self) -> int:
        return self.header.base_offset

    @property
    def last(self) -> int:
        return self.header.base_offset + self.header.last_offset_delta

    @property
    def kind(self) -> int | None:
        return control_type(self.data)


@dataclass
class Producer:
    epoch: int = -1
    txn_first: int = -1
    coordinator_epoch: int = -1
    ranges: list[tuple[int, int, int, int]] = field(default_factory=list)
    """(first sequence, last sequence, first offset, last offset), oldest first, at most five."""


@dataclass
class Derived:
    producers: dict[int, Producer]
    aborted: list[tuple[int, int, int]]
    """(producer id, first offset, marker's offset)"""
    resets: list[int]
    max_pid: int


def derive(batches: list[Batch]) -> Derived:
    producers: dict[int, Producer] = {}
    derived = Derived(producers, [], [], -1)
    for batch in batches:
        header, kind = batch.header, batch.kind
        derived.max_pid = max(derived.max_pid, header.producer_id)
        if kind == 7:
            derived.resets.append(batch.base)
            for pid in [pid for pid, producer in producers.items() if producer.txn_first < 0]:
                del producers[pid]
            for producer in producers.values():
                producer.ranges = []
            continue
        if header.producer_id < 0:
            continue
        producer = producers.setdefault(header.producer_id, Producer())
        if header.producer_epoch != producer.epoch:
            producer.epoch, producer.ranges = header.producer_epoch, []
        if kind in (0, 1):
            if producer.txn_first >= 0 and kind == 0:
                derived.aborted.append((header.producer_id, producer.txn_first, batch.base))
            producer.txn_first = -1
            producer.coordinator_epoch = coordinator_epoch(batch.data)
            continue
        sequences = (header.base_sequence, (header.base_sequence + header.last_offset_delta) & 0x7FFFFFFF)
        producer.ranges = [*producer.ranges, (*sequences, batch.base, batch.last)][-5:]
        if header.is_transactional and producer.txn_first < 0:
            producer.txn_first = batch.base
    return derived


@dataclass
class ModelLog:
    """`kept` are all batches that may still be in segments; those that end below `start` may be gone."""

    kept: list[Batch] = field(default_factory=list)
    gone: list[Batch] = field(default_factory=list)
    """Deleted from the front: producers remember them."""
    start: int = 0
    end: int = 0
    durable: int = 0
    """Below it everything must survive."""

    @property
    def epoch(self) -> int:
        return self.kept[-1].header.leader_epoch if self.kept else -1

    def derive(self) -> Derived:
        return derive([*self.gone, *self.kept])

    def expected_read(self, offset: int, limit: int) -> list[Batch]:
        """Every whole batch from the one that holds `offset` that ends below `limit`."""
        return [batch for batch in self.kept if batch.last >= offset and batch.last < limit]

    def first_at(self, timestamp: int) -> tuple[int, int] | None:
        for batch in self.kept:
            if batch.header.max_timestamp >= timestamp:
                for record in read_records(batch.data):
                    if record.timestamp >= timestamp and record.offset >= self.start:
                        return record.offset, record.timestamp
        return None
