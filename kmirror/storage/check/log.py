"""A check of one partition directory: every file in it, against its segments. L2 storage.

What may live here: the walk through the segments in order, and what has to hold between files. It reads only, in
bounded memory, and shares no code with what writes: a mistake in the engine shows here. The rules of single formats are
in `segment`, `indexes`, `producers` and `epochs` beside it.

How bad a finding is depends on what the next start will do (`kmirror.storage.recovery`): after a clean stop it believes
what is whole and fits; otherwise it goes through the segments from the one with the recovery point on, makes everything
that belongs to them anew, and cuts the log at the first bad batch. A bad batch with a sound one behind it is damage all
the same: that one may have been acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from kmirror.errors import CorruptData
from kmirror.limits import CHECK_ATTEMPTS, CHECK_MAX_FINDINGS_PER_FILE
from kmirror.storage.check.epochs import EpochCheck
from kmirror.storage.check.files import LogFiles, SegmentFile, list_files
from kmirror.storage.check.findings import Finding, ReadableFiles, Report, Severity, Totals
from kmirror.storage.check.indexes import Mistake, OffsetIndexCheck, TimeIndexCheck
from kmirror.storage.check.producers import Difference, Replay, TxnIndexCheck, read_snapshot
from kmirror.storage.check.segment import Batch, Contents, SegmentWalk, look_into
from kmirror.storage.checkpoints import LEADER_EPOCH_FILE
from kmirror.storage.flush import FACTS_FILE, Facts
from kmirror.storage.segment import (
    CLEANED_SUFFIX,
    INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    IndexChecksums,
    file_name,
)

_MAX_RELATIVE_OFFSET = 2**31 - 1
_ALL = 2**63 - 1


@dataclass(frozen=True, slots=True)
class LogContext:
    """What is known of a partition from outside its directory.

    `clean`: whether the last stop was; None when nobody knows, as of a copy: everything is taken to be on disk then.
    `running`: a broker may be writing. `log_start_offset`: None when nobody knows. `compacted`: the log may have gaps.
    """

    clean: bool | None = None
    running: bool = False
    recovery_point: int = 0
    log_start_offset: int | None = None
    compacted: bool = False
    index_interval_bytes: int | None = None


@dataclass(slots=True)
class LogSummary:
    """`end_offset` is behind the last batch; `has_log` is False for a directory without a segment."""

    totals: Totals = field(default_factory=Totals)
    first_offset: int = 0
    end_offset: int = 0
    has_log: bool = False
    damaged: bool = False
    """A batch could not be read: `end_offset` may be too low."""


def check_log(
    fs: ReadableFiles,
    directory: str,
    report: Report,
    *,
    context: LogContext = LogContext(),
    deep: bool = True,
    on_bytes: Callable[[int], None] = lambda size_bytes: None,
) -> LogSummary:
    """Check the partition directory. `deep`: decompress and decode records too. `on_bytes` is told of progress.

    With a broker running only that is believed which a second look finds too: files are replaced, removed and written
    to under the check. Raises FileNotFoundError when the directory is gone, OSError and DiskFailure for files that
    cannot be read.
    """
    seen: set[Finding] = set()
    summary = LogSummary()
    found: list[Finding] = []
    for _ in range(CHECK_ATTEMPTS):
        seen.update(found)
        found = []
        try:
            summary = _LogCheck(fs, list_files(fs, directory), found.append, context, deep, on_bytes).run()
        except FileNotFoundError:
            fs.list_dir(directory)
            if not context.running:
                raise
            continue
        if not context.running or all(one in seen for one in found if one.severity is not Severity.NOTE):
            break
    else:
        found = [one for one in found if one in seen or one.severity is Severity.NOTE]
        text = "its files changed each time it was checked: what was found once only is left out"
        found.append(Finding(Severity.NOTE, directory, text))
    for finding in found:
        report(finding)
    return summary


class _LogCheck:
    def __init__(
        self,
        fs: ReadableFiles,
        files: LogFiles,
        report: Report,
        context: LogContext,
        deep: bool,
        on_bytes: Callable[[int], None],
    ) -> None:
        self._fs = fs
        self._files = files
        self._directory = files.directory
        self._emit = report
        self._context = context
        self._deep = deep
        self._on_bytes = on_bytes
        self._summary = LogSummary()
        self._counts: dict[str, int] = {}
        self._gaps = context.compacted
        """Whether anything says that the log was compacted, or copied from one that was."""
        self._unless_compacted: list[Finding] = []
        self._expected = files.segments[0].base_offset if files.segments else -1
        self._lost = False
        """Where the log stands is not known: a batch could not be read."""
        self._epoch = -1
        self._facts: Facts | None = None

    def report(
        self, severity: Severity, path: str, text: str, *, offset: int | None = None, position: int | None = None
    ) -> None:
        """`path` is a name in the directory."""
        count = self._counts[path] = self._counts.get(path, 0) + 1
        if count <= CHECK_MAX_FINDINGS_PER_FILE:
            self._emit(Finding(severity, f"{self._directory}/{path}", text, offset, position))

    def run(self) -> LogSummary:
        self._read_facts()
        self._leftovers()
        segments = self._files.segments
        self._set_ends(segments)
        self._check_all_there(segments)
        if segments:
            self._summary.has_log = True
            self._summary.first_offset = segments[0].base_offset
            self._replay = Replay(segments[0].base_offset)
            self._begin_side_files(segments)
            for index in range(len(segments)):
                self._segment(index)
            self._finish()
        for finding in self._unless_compacted:
            if not self._gaps:
                name = finding.path.removeprefix(f"{self._directory}/")
                self.report(finding.severity, name, finding.text, offset=finding.offset, position=finding.position)
        for path, count in self._counts.items():
            if count > CHECK_MAX_FINDINGS_PER_FILE:
                text = f"and {count - CHECK_MAX_FINDINGS_PER_FILE} more findings in this file"
                self._emit(Finding(Severity.NOTE, f"{self._directory}/{path}", text))
        return self._summary

    # --- what is there ------------------------------------------------------------------------------------------

    def _read_facts(self) -> None:
        """kmirror's own file: absent in a directory that Kafka wrote."""
        try:
            data = self._fs.read_file(f"{self._directory}/{FACTS_FILE}")
        except FileNotFoundError:
            return
        self._summary.totals.files += 1
        try:
            self._facts = Facts.decode(data, FACTS_FILE)
        except CorruptData as error:
            self.report(Severity.STALE, FACTS_FILE, f"{error}: read anew from the log at the next start")

    def _set_ends(self, segments: list[SegmentFile]) -> None:
        """Below which offset everything is known to be on disk, and from which one the next start makes things anew."""
        context, facts = self._context, self._facts
        durable = context.recovery_point
        if facts is not None:
            if facts.cut_offset >= 0:
                durable = min(durable, facts.cut_offset)
            durable = max(durable, *facts.segments, 0)
        self._known_end = durable
        self._durable_end = durable if context.clean is False else _ALL
        self._log_start = context.log_start_offset
        if facts is not None and self._log_start is not None:
            self._log_start = max(self._log_start, facts.start_offset)
        self._rebuilt_from = _ALL
        if context.clean is False:
            bases = [segment.base_offset for segment in segments if segment.base_offset <= max(0, durable - 1)]
            self._rebuilt_from = bases[-1] if bases else 0

    def _leftovers(self) -> None:
        for name in self._files.names:
            if name.endswith(CLEANED_SUFFIX) and not self._context.running:
                self.report(Severity.STALE, name, "left by an interrupted cleaning: removed at the next start")
            elif name.endswith(SWAP_SUFFIX) and not self._context.running:
                self.report(Severity.STALE, name, "left by an interrupted cleaning: put in place at the next start")

    def _check_all_there(self, segments: list[SegmentFile]) -> None:
        """Segments that `log-facts`, or index files without their log, say there must be."""
        bases = {segment.base_offset for segment in segments}
        listed = set(self._facts.segments) if self._facts is not None else set()
        inside = {base for base in listed - bases if self._is_inside(base)}
        for base in sorted(listed - bases - inside):
            self._is_missing(base)
        self._orphans = sorted((self._files.orphans - listed) | inside)
        if not segments and not listed and self._known_end > (self._log_start or 0):
            text = f"there is no segment, but records up to offset {self._known_end} were on disk"
            self.report(Severity.DAMAGE, "", text, offset=self._known_end)

    def _is_missing(self, base: int) -> None:
        text = "the segment is missing, with all its records: log-facts lists it"
        self.report(Severity.DAMAGE, file_name(base, ".log"), text, offset=base)

    def _is_inside(self, base: int) -> bool:
        bases = [segment.base_offset for segment in self._files.segments]
        return bool(bases) and bases[0] < base < bases[-1]

    def _orphan(self, base: int, end: int) -> None:
        """Index files, or a line in `log-facts`, without a log; the segments below `base` end at `end`.

        Between two segments they tell of a lost one, unless another program merged it into the one before. At either
        end a crash may have left them, which `log-facts` knows better; where Kafka wrote there is nobody else to ask.
        """
        inside = self._is_inside(base)
        lost = base >= end if inside else self._facts is None and self._context.clean is not False
        name = file_name(base, INDEX_SUFFIX)
        if self._facts is not None and base in self._facts.segments:
            if lost:
                self._is_missing(base)
        elif lost:
            self.report(Severity.DAMAGE, name, "its .log is missing, there are only index files of it", offset=base)
        else:
            self.report(Severity.STALE, name, "no .log belongs to it: removed at the next start", offset=base)

    def _begin_side_files(self, segments: list[SegmentFile]) -> None:
        first = segments[0].base_offset
        self._snapshots = [offset for offset in self._files.snapshots if offset >= first]
        if first > 0 and self._snapshots[:1] == [first]:
            with suppress(CorruptData):
                self._replay.begin_with(read_snapshot(self._read(file_name(first, SNAPSHOT_SUFFIX)) or b""))
        self._epochs = EpochCheck(
            self._read(LEADER_EPOCH_FILE),
            first_offset=first,
            log_start_offset=self._log_start if self._context.clean is True else None,
        )

    def _read(self, name: str) -> bytes | None:
        """A small file, None when there is none."""
        try:
            data = self._fs.read_file(f"{self._directory}/{name}")
        except FileNotFoundError:
            return None
        self._summary.totals.files += 1
        self._summary.totals.size_bytes += len(data)
        return data

    # --- segments -----------------------------------------------------------------------------------------------

    def _segment(self, index: int) -> None:
        segments = self._files.segments
        segment = segments[index]
        following = segments[index + 1].base_offset if index + 1 < len(segments) else None
        self._orphans_before(segment)
        walk = SegmentWalk(self._fs.open(f"{self._directory}/{segment.name}"), segment.size_bytes)
        side = _SideFiles(self, segment, following is None)
        first = True
        try:
            for batch in walk:
                if first:
                    self._hole(index, batch)
                    first = False
                self._on_bytes(batch.header.size_bytes)
                self._summary.totals.batches += 1
                self._batch(segment, following, walk, batch, side)
        except CorruptData as error:
            self._tail(segment, walk, str(error), last=following is None)
            side.tainted = True
        if first and not side.tainted:
            self._hole(index, None)
            self._expected = max(self._expected, segment.base_offset)
        side.finish()
        self._summary.totals.files += 1
        self._summary.totals.size_bytes += segment.size_bytes

    def _orphans_before(self, segment: SegmentFile) -> None:
        while self._orphans and self._orphans[0] < segment.base_offset:
            self._orphan(self._orphans.pop(0), self._expected)

    def _hole(self, index: int, batch: Batch | None) -> None:
        """Between the segment before and this one, whose first batch is given, if it has any."""
        segment = self._files.segments[index]
        if index == 0:
            self._expected = segment.base_offset
            return
        base, end = segment.base_offset, self._expected
        if self._lost or base <= end:
            self._expected = max(base, end)
            return
        if batch is None and index + 1 < len(self._files.segments):
            self._gaps = True  # cleaning has left nothing of it
        self._expected = base
        if batch is not None and batch.header.last_offset - end > _MAX_RELATIVE_OFFSET:
            return
        severity = Severity.DAMAGE if end < self._durable_end else Severity.STALE
        text = f"offsets {end} to {base - 1} are missing between this segment and the one before it"
        finding = Finding(severity, f"{self._directory}/{segment.name}", text, end)
        self._unless_compacted.append(finding)

    def _batch(
        self, segment: SegmentFile, following: int | None, walk: SegmentWalk, batch: Batch, side: _SideFiles
    ) -> None:
        header = batch.header
        try:
            walk.check(batch)
        except CorruptData as error:
            self._bad(segment, walk, batch, str(error))
            side.skip(batch)
            return
        try:
            contents = look_into(batch, deep=self._deep)
        except CorruptData as error:
            self.report(Severity.DAMAGE, segment.name, str(error), offset=header.base_offset, position=batch.position)
            side.skip(batch)
            self._replay.incomplete = True
            self._expected = max(self._expected, header.next_offset)
            return
        self._summary.totals.records += contents.record_count
        if not self._order(segment, following, walk, batch, contents):
            side.skip(batch)
            self._lost = self._replay.incomplete = True
            return
        self._compare_snapshots(header.base_offset)
        side.batch(batch, contents)
        self._epochs.batch(header, contents.first_offset)
        self._expected = header.next_offset
        self._lost = False

    def _order(
        self, segment: SegmentFile, following: int | None, walk: SegmentWalk, batch: Batch, contents: Contents
    ) -> bool:
        """False when the batch cannot be in this segment: its offsets are not believed, then."""
        header = batch.header
        # A message set of magic 0 or 1 is named after its last offset: a segment that begins with one may be, too.
        first = contents.first_offset if header.magic < 2 and batch.position else header.base_offset
        text = ""
        if first < segment.base_offset:
            text = f"offset {first} is below the segment's first"
        elif following is not None and header.last_offset >= following:
            text = f"offset {header.last_offset} belongs to the next segment, which begins at {following}"
        elif header.last_offset - segment.base_offset > _MAX_RELATIVE_OFFSET:
            text = f"offset {header.last_offset} is too far from the segment's first for its indexes"
        believed = not text
        if believed and first < self._expected:
            text = f"offset {first} comes again; {self._expected} was expected"
        elif believed and header.leader_epoch < -1:
            text = f"leader epoch {header.leader_epoch} is none"
        elif believed and 0 <= header.leader_epoch < self._epoch:
            text = f"leader epoch goes back from {self._epoch} to {header.leader_epoch}"
        if text:
            severity, fate = self._fate_of_bad(segment, walk)
            self.report(severity, segment.name, text + fate, offset=header.base_offset, position=batch.position)
        if believed:
            self._epoch = header.leader_epoch if header.leader_epoch >= 0 else self._epoch
            thinned = header.magic >= 2 and header.record_count <= header.last_offset_delta
            if (first > self._expected and not self._lost) or thinned or header.delete_horizon_ms is not None:
                self._gaps = True
        return believed

    def _bad(self, segment: SegmentFile, walk: SegmentWalk, batch: Batch, why: str) -> None:
        """A batch whose checksum is wrong. What lies behind it is looked at all the same."""
        severity, fate = self._fate_of_bad(segment, walk)
        self.report(severity, segment.name, why + fate, offset=batch.header.base_offset, position=batch.position)
        self._lost = self._replay.incomplete = self._summary.damaged = True

    def _tail(self, segment: SegmentFile, walk: SegmentWalk, why: str, *, last: bool) -> None:
        rest = segment.size_bytes - walk.position
        offset = None if self._expected < 0 else self._expected
        self._lost = self._summary.damaged = True
        if last and self._context.running:
            self._replay.incomplete = True
            text = f"{rest} bytes at the end are no whole batch yet: the broker is writing"
            self.report(Severity.NOTE, segment.name, text, offset=offset, position=walk.position)
            return
        if last and walk.is_zeros():
            text = f"{rest} zero bytes follow the last batch: cut at the next start"
            self.report(Severity.STALE, segment.name, text, offset=offset, position=walk.position)
            return
        self._replay.incomplete = True
        severity, fate = self._fate_of_bad(segment, walk)
        text = f"{why}; {rest} bytes from here on are not read{fate}"
        self.report(severity, segment.name, text, offset=offset, position=walk.position)

    def _fate_of_bad(self, segment: SegmentFile, walk: SegmentWalk) -> tuple[Severity, str]:
        """Of a batch that cannot stay: how bad it is, and what the next start does about it."""
        if self._expected < self._durable_end:
            return Severity.DAMAGE, ""
        fate = ": the next start cuts the log here"
        sound = walk.sound_batch_behind(max(self._epoch, 0))
        if sound is not None:
            return Severity.DAMAGE, f"{fate}, with the sound batch behind it at byte {sound}"
        if any(other.size_bytes for other in self._files.segments if other.base_offset > segment.base_offset):
            return Severity.DAMAGE, f"{fate}, with the segments behind it"
        return Severity.STALE, fate

    # --- what the log says of its producers ---------------------------------------------------------------------

    def _compare_snapshots(self, next_offset: int) -> None:
        while self._snapshots and self._snapshots[0] <= next_offset:
            self._snapshot(self._snapshots.pop(0))

    def _snapshot(self, offset: int) -> None:
        name = file_name(offset, SNAPSHOT_SUFFIX)
        data = self._read(name)
        if data is None:
            return
        try:
            snapshot = read_snapshot(data)
        except CorruptData as error:
            self.report(Severity.STALE, name, f"{error}: an older one, and the log, are read instead")
            return
        if offset == self._replay.first_offset > 0:
            return  # the replay has begun with it
        for difference in self._replay.differences(snapshot, offset):
            self.differs(name, difference, self.severity(offset))

    def differs(self, name: str, difference: Difference, severity: Severity) -> None:
        finding = Finding(severity, f"{self._directory}/{name}", difference.text, difference.offset)
        if difference.unless_compacted:
            self._unless_compacted.append(finding)
        else:
            self.report(severity, name, difference.text, offset=difference.offset)

    def severity(self, base_offset: int) -> Severity:
        """Of a wrong side file that belongs to the segment at `base_offset`, or to the log at that offset."""
        return Severity.STALE if base_offset >= self._rebuilt_from else Severity.DAMAGE

    # --- the end ------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        end = self._summary.end_offset = max(self._expected, self._summary.first_offset)
        context, last = self._context, self._files.segments[-1]
        for base in self._orphans:
            self._orphan(base, end)
        self._compare_snapshots(end)
        if not context.running:
            for offset in self._snapshots:
                name = file_name(offset, SNAPSHOT_SUFFIX)
                self.report(Severity.STALE, name, f"the log ends below it, at {end}: removed at the next start")
        self._missing_snapshots(end)
        known = self._known_end
        if self._facts is not None and self._facts.cut_offset < 0 and context.clean is not False:
            known = max(known, self._facts.end_offset)
        if end < known and not self._summary.damaged:
            text = f"the log ends at offset {end}, but records up to {known} were on disk"
            self.report(Severity.DAMAGE, last.name, text, offset=end, position=last.size_bytes)
        if end < (self._log_start or 0):
            text = f"the log ends at offset {end}, below its start {self._log_start}"
            if context.clean is False and end >= self._known_end:
                self.report(Severity.STALE, last.name, f"{text}: begun anew there at the next start", offset=end)
            else:
                self.report(Severity.DAMAGE, last.name, text, offset=end)
        self._check_epochs(end)
        if self._facts is not None and not self._replay.incomplete:
            self._check_facts(self._facts)

    def _missing_snapshots(self, end: int) -> None:
        """A log that kmirror keeps has one at each segment, and after a clean stop one at its end; one that it imported
        may have fewer."""
        if self._facts is None:
            return
        wanted = [segment.base_offset for segment in self._files.segments[1:]]
        if self._context.clean and end > self._files.segments[0].base_offset:
            wanted.append(end)
        elif self._context.running:
            wanted = wanted[:-1]
        missing = sorted(set(wanted).difference(self._files.snapshots))
        if missing:
            text = "the producer snapshot is missing" + (f", with {len(missing) - 1} others" if missing[1:] else "")
            text += ": an older one, and the log, are read instead"
            self.report(Severity.NOTE, file_name(missing[0], SNAPSHOT_SUFFIX), text, offset=missing[0])

    def _check_epochs(self, end: int) -> None:
        check, context = self._epochs, self._context
        if check.missing:
            if check.seen and (context.clean or (self._facts is not None and not context.running)):
                self.report(Severity.STALE, LEADER_EPOCH_FILE, "the file is missing: made anew at the next start")
            return
        if check.broken:
            self.report(Severity.STALE, LEADER_EPOCH_FILE, f"{check.broken}: made anew at the next start")
            return
        facts = self._facts
        anew = check.latest != check.last_batch_epoch or (
            facts is not None and context.clean is True and facts.epochs_checksum not in (-1, check.checksum)
        )
        as_written = facts is not None and context.clean is True and facts.epochs_checksum == check.checksum
        for offset, text in check.mistakes(behind=context.running):
            if as_written:
                name = [one.name for one in self._files.segments if one.base_offset <= offset][-1]
                text += (
                    f" in {LEADER_EPOCH_FILE}, which is as it was written: the batch is not, whose epoch no sum covers"
                )
                self.report(Severity.DAMAGE, name, text, offset=offset)
                continue
            severity = Severity.STALE if anew and context.clean else self.severity(offset)
            self.report(severity, LEADER_EPOCH_FILE, text, offset=offset)
        if check.last_start > end and not context.running and not self._summary.damaged:
            text = (
                f"epoch {check.latest} begins at {check.last_start}, the log ends at {end}: removed at the next start"
            )
            self.report(Severity.STALE, LEADER_EPOCH_FILE, text, offset=check.last_start)

    def _check_facts(self, facts: Facts) -> None:
        replay = self._replay
        known_end = facts.end_offset if facts.cut_offset < 0 else facts.cut_offset
        said = {offset for offset in facts.pid_reset_offsets if self._summary.first_offset <= offset < known_end}
        found = {offset for offset in replay.resets if offset < known_end}
        for offset in sorted(said ^ found):
            text = (
                "a producer-id reset is in the log and not listed"
                if offset in found
                else "no producer-id reset is here"
            )
            self.report(Severity.DAMAGE, FACTS_FILE, text, offset=offset)
        if replay.max_producer_id > facts.max_producer_id and self._context.clean:
            text = f"the largest producer id is {replay.max_producer_id}, it says {facts.max_producer_id}"
            self.report(Severity.DAMAGE, FACTS_FILE, text)


class _SideFiles:
    """Index files of one segment, while its batches go by."""

    def __init__(self, log: _LogCheck, segment: SegmentFile, last: bool) -> None:
        self.tainted = False
        """The segment was not read to its end, or not as a whole."""
        self._spoke: set[str] = set()
        """Files of which something was said."""
        self._log = log
        self._segment = segment
        self._last = last
        context = log._context
        in_memory = last and (context.running or context.clean is False)
        self._closed = not last or context.clean is True
        raw: dict[str, bytes | None] = {}
        if not in_memory:
            raw = {suffix: log._read(segment.side(suffix)) for suffix in _INDEX_SUFFIXES}
        index, times, transactions = (raw.get(suffix) for suffix in _INDEX_SUFFIXES)
        self._offsets = None
        if index is not None:
            self._offsets = OffsetIndexCheck(
                index, segment.base_offset, segment.size_bytes, context.index_interval_bytes
            )
        self._times = None if times is None else TimeIndexCheck(times, segment.base_offset)
        self._transactions = None if in_memory else TxnIndexCheck(transactions or b"", segment.base_offset)
        self._changed = self._compare_checksums(index, times, transactions) if raw else (False, False)
        if not in_memory and self._closed and segment.size_bytes:
            for suffix, data in ((INDEX_SUFFIX, index), (TIME_INDEX_SUFFIX, times)):
                if data is None:
                    self._say(Severity.STALE, suffix, "the file is missing: made anew from the log when it is needed")

    def _compare_checksums(
        self, index: bytes | None, times: bytes | None, transactions: bytes | None
    ) -> tuple[bool, bool]:
        """Whether the lookup indexes, and the transaction index, are others than those that were written: noticed."""
        facts = self._log._facts
        known = facts.checksums.get(self._segment.base_offset) if facts is not None else None
        if known is None:
            return False, False
        contents = zip(_INDEX_SUFFIXES, (index or b"", times or b"", transactions or b""), strict=True)
        found = IndexChecksums.of(contents)
        return found.lookup != known.lookup, found.transactions != known.transactions

    def skip(self, batch: Batch) -> None:
        self.tainted = True
        if self._offsets is not None:
            self._offsets.skip(batch.position)

    def batch(self, batch: Batch, contents: Contents) -> None:
        if self._offsets is not None:
            self._offsets.batch(batch.position, batch.header)
        if self._times is not None and not self.tainted:
            self._times.batch(batch.header, contents.first_offset)
        replay = self._log._replay
        aborted = replay.batch(batch.header, contents.marker)
        if self._transactions is not None:
            if batch.header.is_transactional and not batch.header.is_control:
                self._transactions.begins(batch.header.base_offset)
            if aborted is not None and not replay.incomplete:
                self._transactions.aborted(aborted, replay.first_offset)

    def finish(self) -> None:
        if self._offsets is not None:
            if not self.tainted:
                self._offsets.finish()
            self._lookup(INDEX_SUFFIX, self._offsets.broken, self._offsets.mistakes)
        if self._times is not None and not self.tainted:
            self._times.finish(closed=self._closed)
            self._lookup(TIME_INDEX_SUFFIX, self._times.broken, self._times.mistakes)
        if self._transactions is not None:
            self._finish_transactions(self._transactions)
        changed = {INDEX_SUFFIX, TIME_INDEX_SUFFIX} if self._changed[0] else set()
        changed |= {TXN_INDEX_SUFFIX} if self._changed[1] else set()
        if changed and not changed & self._spoke and self._log._context.clean is not False:
            self._say(Severity.STALE, min(changed), "it is not the file that was written: its checksum is another")

    def _lookup(self, suffix: str, broken: str, mistakes: list[Mistake]) -> None:
        base = self._segment.base_offset
        wrong = Severity.STALE if self._changed[0] else self._log.severity(base)
        if broken and "points to byte" in broken and not self._last and wrong is Severity.DAMAGE:
            self._say(Severity.DAMAGE, suffix, f"{broken}: the log is shorter than it was")
        elif broken:
            self._say(Severity.STALE, suffix, f"{broken}: made anew when it is needed")
        else:
            for mistake in mistakes:
                severity = Severity.NOTE if mistake.harmless else wrong
                self._say(severity, suffix, mistake.text, offset=mistake.offset, position=mistake.position)

    def _finish_transactions(self, check: TxnIndexCheck) -> None:
        if check.broken:
            self._say(Severity.STALE, TXN_INDEX_SUFFIX, f"{check.broken}: made anew at the next start")
            return
        if self._log._replay.incomplete:
            return
        check.finish()
        severity = Severity.STALE if self._changed[1] else self._log.severity(self._segment.base_offset)
        for difference in check.differences:
            self._spoke.add(TXN_INDEX_SUFFIX)
            self._log.differs(self._segment.side(TXN_INDEX_SUFFIX), difference, severity)

    def _say(
        self, severity: Severity, suffix: str, text: str, *, offset: int | None = None, position: int | None = None
    ) -> None:
        self._spoke.add(suffix)
        self._log.report(severity, self._segment.side(suffix), text, offset=offset, position=position)


_INDEX_SUFFIXES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
