"""What goes into a partition's machine (events) and what comes out (actions). Pure values.

Actions that take a `token` are finished by exactly one `StepDone` or `StepFailed` with that token; at most one of them
is under way per machine, beside one background epoch bump. Questions (`Ask`) are answered by `Answered`; the machine
forgets a question by no longer knowing its number.
"""

from __future__ import annotations

from dataclasses import dataclass

from kmirror.mirror.agreement import AskBatch, AskEpochEnd, Compared
from kmirror.mirror.alignment import Lineage, Plan, Refused
from kmirror.mirror.durable import EARLIEST
from kmirror.mirror.states import Desired

# --- events ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Loaded:
    """Boot, or the association became current: durable state and desired state are in place, take it from there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wished:
    """The operator's wish is recorded. Starting needs a `Begin` besides."""

    desired: Desired


@dataclass(frozen=True, slots=True, kw_only=True)
class Decide:
    """Work out the plan of a start, changing nothing. Ends with a `Decided` action."""

    start_from: int = EARLIEST
    force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """The plan is accepted for the whole topic, and the wish is recorded: go to PREPARING."""

    plan: Plan
    start_from: int = EARLIEST


@dataclass(frozen=True, slots=True)
class Refuse:
    """A start that nobody waits for was refused: a STOPPED partition stays as it is, any other becomes FAILED."""

    message: str


@dataclass(frozen=True, slots=True)
class Recover:
    """Back to the state that the partition failed from, attempts counted anew (RecoverMirrorTopics)."""


@dataclass(frozen=True, slots=True)
class Prepare:
    """The plan will be carried out: refuse writes from now on, so that local transactions can be ended and what would
    go counted again."""


@dataclass(frozen=True, slots=True)
class Abandon:
    """Forget a decision that is under way, and what Prepare did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSeen:
    """Metadata of the source for this partition; `leader` -1 while an election is running."""

    leader: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class SourceLost:
    """The source topic is gone, another topic, or the source another cluster: never spliced, never retried."""

    message: str


@dataclass(frozen=True, slots=True)
class SourceUnreachable:
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEnd:
    leader_epoch: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class Offset:
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """The lineage that the source recorded for us, None = none (or it is too old to know)."""

    lineage: Lineage | None
    mirror: str = ""
    """The mirror at the source that copies, or copied, this partition from us. Empty: none does."""
    state: str = "STOPPED"
    """That mirror's state of the partition, as people see it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionFailed:
    code: int
    transport: bool
    message: str


@dataclass(frozen=True, slots=True)
class Answered:
    question: int
    answer: EpochEnd | Offset | Compared | Reported | QuestionFailed


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """A fetch was applied (perhaps empty). `last_epoch` -1: nothing was appended."""

    last_epoch: int
    source_high_watermark: int
    source_log_start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchError:
    """The source refused the fetch (`code`), or what it sent was refused here (`code` 0 and a message)."""

    code: int = 0
    message: str = ""
    leader: int = -1
    leader_epoch: int = -1
    fatal: bool = False
    """Not a matter of waiting: the partition fails (a corrupt batch, a full disk)."""


@dataclass(frozen=True, slots=True)
class NewerEpoch:
    """Fetched data carries an epoch above ours; it was rejected."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Overlap:
    """The source's batch at `base_offset` reaches across our log end: compaction keeps base offsets, so from there on
    the logs differ, whatever the epochs say."""

    base_offset: int


@dataclass(frozen=True, slots=True)
class StepDone:
    token: int


@dataclass(frozen=True, slots=True)
class StepFailed:
    token: int
    message: str


@dataclass(frozen=True, slots=True)
class TimerFired:
    pass


Event = (
    Loaded
    | Wished
    | Decide
    | Begin
    | Refuse
    | Recover
    | Prepare
    | Abandon
    | SourceSeen
    | SourceLost
    | SourceUnreachable
    | Answered
    | Appended
    | FetchError
    | NewerEpoch
    | Overlap
    | StepDone
    | StepFailed
    | TimerFired
)

# --- actions --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FlushLog:
    token: int


@dataclass(frozen=True, slots=True)
class SaveCut:
    """Keep [from_offset, log end) as segment files. `label` is the same when it is repeated after a crash."""

    token: int
    from_offset: int
    label: str


@dataclass(frozen=True, slots=True)
class TruncateTo:
    token: int
    offset: int


@dataclass(frozen=True, slots=True)
class RestartAt:
    """Drop everything; the log is empty and starts at `offset`."""

    token: int
    offset: int


@dataclass(frozen=True, slots=True)
class AdvanceLogStart:
    offset: int


@dataclass(frozen=True, slots=True)
class BumpEpoch:
    """Raise the partition's leader epoch: at least `minimum` + 1, durable before StepDone."""

    token: int
    minimum: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Abort:
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int


@dataclass(frozen=True, slots=True)
class AppendAborts:
    token: int
    markers: tuple[Abort, ...]


@dataclass(frozen=True, slots=True)
class AppendReset:
    token: int


@dataclass(frozen=True, slots=True)
class RaiseProducerIds:
    token: int
    above: int


@dataclass(frozen=True, slots=True)
class AskOffset:
    """ListOffsets: a timestamp in ms, -1 latest, -2 earliest."""

    timestamp: int


@dataclass(frozen=True, slots=True)
class AskLineage:
    pass


Question = AskEpochEnd | AskBatch | AskOffset | AskLineage


@dataclass(frozen=True, slots=True)
class Ask:
    number: int
    question: Question


@dataclass(frozen=True, slots=True)
class RefreshMetadata:
    pass


@dataclass(frozen=True, slots=True)
class Decided:
    outcome: Plan | Refused


@dataclass(frozen=True, slots=True)
class Report:
    """Something an operator must be able to find later: logged and counted."""

    kind: str
    text: str
    offsets: int = 0


Action = (
    FlushLog
    | SaveCut
    | TruncateTo
    | RestartAt
    | AdvanceLogStart
    | BumpEpoch
    | AppendAborts
    | AppendReset
    | RaiseProducerIds
    | Ask
    | RefreshMetadata
    | Decided
    | Report
)
