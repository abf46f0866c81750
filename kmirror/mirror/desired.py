"""How a topic's association with a mirror is kept in the metadata log. Pure. *The* place that knows this encoding.

The KIP's own record (MirrorTopicStateChangeRecord, type 29) is not one that Kafka 4.4 can read, so the operator's wish
is a ConfigRecord of resource type 64, resource name = the mirror, config name `desired.state.<topic id>` (22 characters
of URL-safe base64), value = compact JSON:

    {"topic": NAME, "state": "MIRRORING" | "PAUSED" | "STOPPED", "source_id": TOPIC-ID (absent: the source has no ids),
     "from": timestamp in ms | -1 | -2, "partitions": how many existed at the start, "force": bool}

`from`, `partitions` and `force` belong to the last accepted start: they are read only for partitions that have recorded
nothing yet (a crash between the wish and PREPARING). No value (null) removes the association.

Beside it `synced.configs.<topic id>` holds the names of the topic configs that the mirror set, comma separated, so that
an override removed at the source can be removed here without touching those set by people.

Names with these prefixes are no configuration: they are hidden from DescribeConfigs and refused by AlterConfigs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kmirror.errors import CorruptData
from kmirror.mirror.durable import EARLIEST
from kmirror.mirror.states import Desired
from kmirror.protocol import uuids

PREFIX: Final = "desired.state."
SYNCED_PREFIX: Final = "synced.configs."


@dataclass(frozen=True, slots=True, kw_only=True)
class Association:
    """One topic of one mirror."""

    topic: str
    topic_id: bytes
    desired: Desired
    source_topic_id: bytes = uuids.ZERO
    """All zero: the source had no topic ids at the start; identity is by name."""
    start_from: int = EARLIEST
    partitions_at_start: int = 0
    force: bool = False


def config_name(topic_id: bytes) -> str:
    return PREFIX + uuids.to_text(topic_id)


def encode(association: Association) -> str:
    value: dict[str, object] = {"topic": association.topic, "state": association.desired.value}
    if association.source_topic_id != uuids.ZERO:
        value["source_id"] = uuids.to_text(association.source_topic_id)
    if association.start_from != EARLIEST:
        value["from"] = association.start_from
    value["partitions"] = association.partitions_at_start
    if association.force:
        value["force"] = True
    return json.dumps(value, separators=(",", ":"))


def decode(name: str, value: str) -> Association:
    """Raises CorruptData."""
    try:
        fields = json.loads(value)
        source = fields.get("source_id")
        return Association(
            topic=fields["topic"],
            topic_id=uuids.from_text(name.removeprefix(PREFIX)),
            desired=Desired(fields["state"]),
            source_topic_id=uuids.ZERO if source is None else uuids.from_text(source),
            start_from=int(fields.get("from", EARLIEST)),
            partitions_at_start=int(fields["partitions"]),
            force=bool(fields.get("force", False)),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptData(f"mirror config {name} holds {value!r}: {error}") from None


def associations(configs: Mapping[str, str]) -> list[Association]:
    """All associations among one mirror's configs. Raises CorruptData."""
    return [decode(name, value) for name, value in configs.items() if name.startswith(PREFIX)]


def visible(configs: Mapping[str, str]) -> dict[str, str]:
    """What is configuration, for people."""
    return {name: value for name, value in configs.items() if not hidden(name)}


def hidden(name: str) -> bool:
    return name.startswith((PREFIX, SYNCED_PREFIX))


def synced_name(topic_id: bytes) -> str:
    return SYNCED_PREFIX + uuids.to_text(topic_id)


def synced(configs: Mapping[str, str], topic_id: bytes) -> set[str]:
    """Names of the topic configs that this mirror set."""
    return {name for name in configs.get(synced_name(topic_id), "").split(",") if name}
