"""The thirteen mirror APIs (KIP-1279) against a second statement of their layout, written down by hand.

Nobody else's definition exists yet, so the round trips prove little: this table is what was agreed on, field by field.
One line per field: indentation is nesting, `[]` an array, `?` nullable (null is the default), `=` another default than
zero, `#n` a tag. All are version 0 and flexible. Fields that are kmirror's own are tagged, so that others skip them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kmirror.protocol import mirror_numbers, registry
from kmirror.protocol.compile import encode
from kmirror.protocol.schema import Field, schema_of

ANSWER = """
throttle_time_ms Int32
error_code Int16
error_message String?
"""
TOPIC_RESULTS = """
topics []
  topic_name String
  error_code Int16
  error_message String?
"""
NAMED_TOPICS = """
mirror_name String
topics []
  topic_name String
state_offset Int64 =-1
"""
PARTITION_LISTS = """
topics []
  topic_name String
  partitions []
"""

REQUESTS = {
    "StartMirrorTopics": """
mirror_name String
topics []
  topic_id Uuid
  topic_name String
  num_partitions Int32
state_offset Int64 =-1
include_patterns []String #0
exclude_patterns []String #1
replace Bool #2
start_from Int64 =-2 #3
""",
    "StopMirrorTopics": NAMED_TOPICS + "patterns []String #0",
    "PauseMirrorTopics": NAMED_TOPICS,
    "ResumeMirrorTopics": NAMED_TOPICS,
    "RecoverMirrorTopics": NAMED_TOPICS.replace("state_offset Int64 =-1\n", ""),
    "CreateClusterMirror": """
mirror_name String
configs []
  name String
  value String?
""",
    "DeleteClusterMirror": """
mirror_name String
state_offset Int64 =-1
""",
    "ListClusterMirrors": """
include_topic_names Bool
mirror_name_filter []String?
source_cluster_id_filter []String?
desired_state_filter []String?
""",
    "DescribeClusterMirrors": """
mirror_names []String?
topics []?
  topic_name String
  partitions []Int32
cluster_id String?
include_mirror_state Bool
include_mirror_offset Bool
include_authorized_operations Bool
""",
    "ReadMirrorStates": "mirror_name String" + PARTITION_LISTS + "    partition_index Int32",
    "WriteMirrorStates": "mirror_name String" + PARTITION_LISTS + """
    partition_index Int32
    state Int8
    leader_epoch Int32 =-1
    state_epoch Int32 =-1
    last_mirror_epoch Int32 =-1
    last_mirror_offset Int64 =-1
    error_message String?
    retry_attempt Int32 =-1
    non_retryable Bool
""",
    "BumpLeaderEpochs": PARTITION_LISTS + """
    partition_index Int32
    min_leader_epoch Int32 =-1
""",
    "ReadMirrorOffsets": """
mirror_name String
topics []
  topic_name String
  partitions []Int32
""",
}  # fmt: skip

RESPONSES = {
    "StartMirrorTopics": TOPIC_RESULTS,
    "StopMirrorTopics": TOPIC_RESULTS + """
  partitions [] #0
    partition_index Int32
    last_mirrored_offset Int64
    source_end_offset Int64 =-1
    missing_offsets Int64 =-1
    aborted_transactions Int32
""",
    "PauseMirrorTopics": TOPIC_RESULTS,
    "ResumeMirrorTopics": TOPIC_RESULTS,
    "RecoverMirrorTopics": TOPIC_RESULTS,
    "CreateClusterMirror": "",
    "DeleteClusterMirror": "",
    "ListClusterMirrors": """
mirrors []
  mirror_name String
  source_bootstrap String
  source_cluster_id String
  topic_count Int32
  topic_names []String?
""",
    "DescribeClusterMirrors": """
mirrors []
  error_code Int16
  error_message String?
  mirror_name String
  source_bootstrap String?
  source_cluster_id String?
  authorized_operations Int32 =-2147483648
  topics []
    topic_name String
    partitions []
      partition_index Int32
      state_value String
      error_message String?
      retry_attempt Int16
      source_offset Int64 =-1
      destination_offset Int64 =-1
      last_mirror_epoch Int32 =-1
      last_mirror_offset Int64 =-1
      phase String?
      gaps [] #0
        from_offset Int64
        to_offset Int64
        at_ms Int64
      retry_max Int16 =-1 #1
      retry_next_at_ms Int64 =-1 #2
      leader_epoch Int32 =-1 #3
      copied_bytes Int64 =-1 #4
      cut_offsets Int64 =-1 #5
      cut_saved String? #6
  active_groups []String #0
""",
    "ReadMirrorStates": PARTITION_LISTS + """
    partition_index Int32
    state Int8
    leader_epoch Int32 =-1
    state_epoch Int32
    last_mirror_epoch Int32 =-1
    last_mirror_offset Int64 =-1
    error_code Int16
    error_message String?
    retry_attempt Int16
    previous_state Int8 =-1
""",
    "WriteMirrorStates": PARTITION_LISTS + """
    partition_index Int32
    error_code Int16
    error_message String?
    state_epoch Int32 =-1
""",
    "BumpLeaderEpochs": PARTITION_LISTS + """
    partition_index Int32
    error_code Int16
    error_message String?
""",
    "ReadMirrorOffsets": PARTITION_LISTS + """
    partition_index Int32
    source_offset Int64 =-1
    destination_offset Int64 =-1
""",
}  # fmt: skip

ZEROS = {"Bool": False, "String": "", "Uuid": bytes(16)}


def written_down(fields: tuple[Field, ...], depth: int = 0) -> Iterator[str]:
    """Our schema in the language of the tables."""
    for field in fields:
        assert 0 in field.versions
        kind = field.type.name if field.type.struct is None else ""
        text = ("[]" if field.type.is_array else "") + kind + ("?" if 0 in field.nullable else "")
        zero = [] if field.type.is_array else ZEROS.get(kind, 0)
        if field.default != (None if 0 in field.nullable else zero):
            text += f" ={field.default}"
        if 0 in field.tagged:
            text += f" #{field.tag}"
        yield f"{'  ' * depth}{field.name} {text}"
        if field.type.struct is not None:
            yield from written_down(schema_of(field.type.struct).fields, depth + 1)


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize("name", mirror_numbers.API_KEYS)
def test_layout(name: str) -> None:
    api = registry.by_name[name]
    assert api.key == mirror_numbers.API_KEYS[name]
    assert (api.min_version, api.max_version, api.flexible_from) == (0, 0, 0)
    assert list(written_down(schema_of(api.request).fields)) == lines(REQUESTS[name])
    assert list(written_down(schema_of(api.response).fields)) == lines(ANSWER + RESPONSES[name])


def test_bytes_by_hand() -> None:
    stop: Any = registry.by_name["StopMirrorTopics"]
    module = __import__(stop.request.__module__, fromlist=["StopMirrorTopic"])
    request = stop.request(mirror_name="m", topics=[module.StopMirrorTopic(topic_name="t")], patterns=["x.*"])
    assert encode(request, 0) == bytes.fromhex("02 6d 02 02 74 00 ffffffffffffffff 01 00 05 02 04 78 2e 2a")
    describe: Any = registry.by_name["DescribeClusterMirrors"]
    assert encode(describe.request(include_mirror_state=True), 0) == bytes.fromhex("00 00 00 01 00 00 00")
    assert encode(describe.response(error_code=137), 0) == bytes.fromhex("00000000 0089 00 01 00")
