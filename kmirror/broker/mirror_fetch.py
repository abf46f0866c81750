"""The data path of mirroring: what to fetch, is it what we asked for, append it. L3.

Per batch only one header is unpacked here (the log walks and checks them again while it appends); per fetched partition
there is one lease check and one step of the machine. What must hold: a byte is appended only under a lease that is
current at that moment, exactly as received, and behind the log's end in order of epochs; what fails is dropped whole or
cut at a batch, never changed.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from kmirror.broker.mirror_partition import MirroredPartition
from kmirror.broker.mirror_seam import Examined, FetchAnswer, FetchItem, Lease
from kmirror.broker.partition import Partition
from kmirror.effects import Promise
from kmirror.errors import ApiError, CorruptData
from kmirror.limits import MIRROR_APPEND_RUN_BYTES
from kmirror.mirror import events as ev
from kmirror.mirror.epochs import must_fence
from kmirror.mirror.plan import shares
from kmirror.protocol.errors import ErrorCode
from kmirror.protocol.records import MAGIC_POSITION, NEWEST_MAGIC, parse_header, walk

if TYPE_CHECKING:
    from kmirror.broker.mirroring import Mirrors

_logger = logging.getLogger("kmirror.mirror")

_HEAD: Final = struct.Struct(">qiibIhi")
"""base offset, length, leader epoch, magic, crc, attributes, last offset delta."""
_PREFIX_BYTES: Final = 12
STALE: Final = "stale"
NEWER_EPOCH: Final = "newer epoch"
OVERLAP: Final = "overlap"
"""Refusals that are not a matter of showing a text."""
_MIN_BATCH_BYTES: Final = 61
_REFUSED_BATCH: Final = frozenset({ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD})
"""The log's verdict on one batch of a run; those before it are good and stay."""


def plan_fetch(mirrors: Mirrors, mirror: str, broker_id: int, after: Sequence[Examined]) -> list[FetchItem]:
    """See `Mirrors.plan_fetch`."""
    link = mirrors.mirrors.get(mirror)
    if link is None:
        return []
    now_ms = mirrors.now_ms()
    ahead = {id(one.item.lease.machine): one for one in after}
    ready: list[tuple[MirroredPartition, int]] = []
    items: list[FetchItem] = []
    for partition in link.partitions():
        if partition.idle_at == broker_id and id(partition) not in ahead:
            assert partition.planned is not None
            items.append(partition.planned)
            continue
        machine = partition.machine
        if machine.source_leader != broker_id or not machine.fetchable(now_ms) or partition.partition.deleted:
            continue
        one = ahead.get(id(partition))
        if one is None:
            offset = partition.partition.log.log_end_offset
        elif one.accepted or not (one.answer.error_code or one.refusal):
            offset = one.next_offset
        else:
            continue  # what to do about it is known only once it is applied
        ready.append((partition, offset))
    if not ready:
        return items
    ready.sort(key=lambda pair: pair[0].served)
    fetch_max = link.config.number("fetch.max.bytes")
    sizes = shares(
        (partition.appetite.wanted(fetch_max) for partition, _ in ready),
        response_max_bytes=link.config.number("fetch.response.max.bytes"),
        fetch_max_bytes=fetch_max,
    )
    mirrors.fetch_serial += 1
    for (partition, offset), size in zip(ready, sizes, strict=True):
        items.append(_item(mirrors, mirror, broker_id, partition, offset, size))
        # until its next step; a guess ahead of the log must not last
        partition.idle_at = -1 if id(partition) in ahead else broker_id
    return items


def _item(
    mirrors: Mirrors, mirror: str, broker_id: int, partition: MirroredPartition, offset: int, size: int
) -> FetchItem:
    machine = partition.machine
    partition.served = mirrors.fetch_serial
    partition.planned = FetchItem(
        mirror=mirror,
        topic=machine.topic,
        topic_id=mirrors.source_topic_id(machine.topic),
        partition=partition.index,
        broker_id=broker_id,
        fetch_offset=offset,
        source_leader_epoch=machine.agreed_epoch,
        log_start_offset=-1,
        max_bytes=size,
        lease=Lease(partition, machine.lease_number, partition.partition.log.generation, offset),
    )
    return partition.planned


def current(mirrors: Mirrors, lease: Lease) -> bool:
    """Whether what was fetched under `lease` may be appended now."""
    partition = lease.machine
    assert isinstance(partition, MirroredPartition)
    if partition.partition.deleted or not mirrors.is_current(partition):
        return False
    log = partition.partition.log
    return (
        lease.number == partition.machine.lease_number
        and lease.generation == log.generation
        and lease.offset == log.log_end_offset
        and partition.machine.fetchable(mirrors.now_ms())
    )


def examine(mirrors: Mirrors, item: FetchItem, answer: FetchAnswer) -> Examined:
    """Headers only. `accepted` = there is something, and nothing speaks against it so far."""
    found = Examined(item=item, answer=answer, accepted=False, next_offset=item.fetch_offset)
    if not current(mirrors, item.lease):
        found.refusal = STALE
        return found
    if answer.error_code or len(answer.records) == 0:
        return found
    partition = item.lease.machine
    assert isinstance(partition, MirroredPartition)
    found.refusal = _walk(found, answer.records, partition)
    if found.refusal is None and found.batch_count:
        epoch = partition.machine.agreed_epoch
        if 0 <= epoch < found.last_epoch:
            # an election that our metadata does not show yet: nothing is wrong with the bytes
            found.refusal = f"the source sent a batch of epoch {found.last_epoch}, its metadata says {epoch}"
            found.passing = True
        else:
            found.accepted = not must_fence(found.last_epoch, partition.partition.leader_epoch)
            if not found.accepted:
                found.refusal = NEWER_EPOCH
    return found


def _walk(found: Examined, data: bytes | memoryview, partition: MirroredPartition) -> str | None:
    """Fill in what the headers say. Returns why the first batch cannot be taken, or None.

    What cannot be taken behind good batches ends the answer there: the next fetch begins with it.
    """
    log = partition.partition.log
    expected, epoch = found.item.fetch_offset, log.epochs.latest
    limit = found.answer.high_watermark
    empty = log.log_start_offset == log.log_end_offset
    size, position, count, run_start = len(data), 0, 0, 0
    runs: list[int] = []
    refusal: str | None = None
    unpack = _HEAD.unpack_from
    while size - position > MAGIC_POSITION:
        magic = data[position + MAGIC_POSITION]
        if magic < NEWEST_MAGIC:
            try:
                old = parse_header(data, position)
            except CorruptData:
                refusal = f"the source sent a damaged message at offset {expected}"
                break
            base, length, batch_epoch, delta = old.base_offset, old.length, epoch, 0
        elif size - position < _MIN_BATCH_BYTES:
            break
        else:
            base, length, batch_epoch, magic, _crc, _attributes, delta = unpack(data, position)
        end = position + _PREFIX_BYTES + length
        if magic == NEWEST_MAGIC and (length < _MIN_BATCH_BYTES - _PREFIX_BYTES or delta < 0):
            refusal = f"the source sent a damaged batch at offset {expected}"
            break
        if end > size:
            # brokers return a first batch whole (KIP-74): asking for the rest of it would go on for ever
            refusal = f"the source sent {size} bytes of the batch at offset {base}, which has {end}"
            break
        if magic > NEWEST_MAGIC:
            refusal = f"the source sent message format {magic}, which no Kafka release writes"
            break
        if base < expected and not (empty and count == 0 and base + delta >= expected):
            if count == 0 and not empty and base + delta >= expected:
                found.first_offset = base
                return OVERLAP
            refusal = f"the source sent a batch at offset {base}, below the {expected} that was asked for"
            break
        if base + delta >= limit:
            # a lie, or committed between the source's look at its high watermark and at its log: asked again
            refusal = f"the source sent offset {base + delta}, its high watermark is {limit}"
            found.passing = count == 0
            break
        if batch_epoch < epoch:
            refusal = f"the source sent epoch {batch_epoch} at offset {base}, behind epoch {epoch}"
            break
        if count == 0:
            found.first_offset, found.first_epoch = base, batch_epoch
        if end - run_start > MIRROR_APPEND_RUN_BYTES and position > run_start:
            runs.append(position)
            run_start = position
        count += 1
        expected, epoch, position = base + delta + 1, batch_epoch, end
    if not count:
        return refusal
    runs.append(position)
    found.next_offset, found.last_epoch = expected, epoch
    found.size_bytes, found.batch_count, found.runs = position, count, runs
    return None


def apply(mirrors: Mirrors, examined: Examined) -> None:
    """Append what was examined, then let the machine know in numbers."""
    item, answer = examined.item, examined.answer
    partition = item.lease.machine
    assert isinstance(partition, MirroredPartition)
    if examined.refusal == STALE or not current(mirrors, item.lease):
        return
    if answer.error_code:
        partition.step(
            ev.FetchError(
                code=answer.error_code, leader=answer.current_leader_id, leader_epoch=answer.current_leader_epoch
            )
        )
    elif examined.refusal == OVERLAP:
        partition.step(ev.Overlap(examined.first_offset))
    elif examined.refusal == NEWER_EPOCH:
        partition.step(ev.NewerEpoch(examined.last_epoch))
    elif examined.refusal is not None:
        partition.step(ev.FetchError(message=examined.refusal, fatal=not examined.passing))
    else:
        partition.appetite.learn(
            asked_bytes=item.max_bytes,
            received_bytes=len(answer.records),
            fetch_max_bytes=mirrors.mirrors[item.mirror].config.number("fetch.max.bytes"),
        )
        _append(partition, examined)


def _append(partition: MirroredPartition, examined: Examined) -> None:
    target = partition.partition
    begin = examined.item.fetch_offset
    try:
        if examined.accepted and examined.first_offset < begin:
            # the source's log starts inside a batch: ours begins with that whole batch
            target.restart_at(examined.first_offset)
        start = 0
        data = memoryview(examined.answer.records)
        for end in examined.runs:
            _append_run(target, data[start:end])
            partition.copied.size_bytes += end - start
            start = end
    except ApiError as error:
        text = f"what the source sent at offset {target.log_end_offset} was refused: {error.message}"
        if error.code == ErrorCode.KAFKA_STORAGE_ERROR and error.message:
            text = error.message  # the source is not to blame
        partition.step(ev.FetchError(message=text, fatal=True))
        return
    if examined.accepted and examined.first_offset < begin:
        target.when_committed(examined.next_offset).then(lambda done: _hide_below(partition, begin, done))
    partition.copied.batch_count += examined.batch_count
    if partition.fetched_under != target.log.generation:
        partition.fetched_under = target.log.generation
        partition.mirrors.group_sync.wish(partition.machine.mirror)
    if not partition.copied.announced and target.log_end_offset >= examined.answer.high_watermark:
        _announce(partition)
        partition.mirrors.group_sync.wish(partition.machine.mirror)
    partition.step(
        ev.Appended(
            last_epoch=examined.last_epoch,
            source_high_watermark=examined.answer.high_watermark,
            source_log_start=examined.answer.log_start_offset,
        )
    )


def _announce(partition: MirroredPartition) -> None:
    """Once per start: what it took to have all that the source has."""
    copied = partition.copied
    copied.announced = True
    _logger.info(
        "mirror %s: %s has caught up with the source at offset %s: %s bytes copied, %s bytes here in all",
        partition.machine.mirror,
        partition.partition,
        partition.partition.log_end_offset,
        copied.size_bytes,
        partition.partition.log.size_bytes,
    )


def _append_run(target: Partition, run: memoryview) -> None:
    """Append a run of batches whole, or up to the one that the log refuses. Raises ApiError after that."""
    try:
        target.append_replicated(run)
    except ApiError as error:
        if error.code not in _REFUSED_BATCH:
            raise
        with suppress(CorruptData):  # a header that cannot be one is the one to blame
            for position, header in walk(run):
                target.append_replicated(run[position : position + header.size_bytes])
        raise


def _hide_below(partition: MirroredPartition, offset: int, done: Promise[None]) -> None:
    """The log start is the source's (or the record that --from named), inside our first batch."""
    try:
        done.result()
    except ApiError:
        return  # cut or deleted meanwhile
    if partition.partition.high_watermark >= offset:
        partition.partition.advance_log_start(offset)
