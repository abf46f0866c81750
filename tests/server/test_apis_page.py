"""Handlers, their docstrings, the table, the registry and docs/APIS.md say the same."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

import kmirror
from kmirror.protocol import mirror_numbers, private_numbers, registry
from kmirror.server import handlers
from kmirror.server.apis import describe, module_of, page
from kmirror.server.handlers import TABLE, advertised

ROOT = Path(kmirror.__file__).resolve().parent.parent

KAFKA_4_4_0 = {
    "Produce": (0, 13),
    "Fetch": (4, 18),
    "ListOffsets": (1, 11),
    "Metadata": (0, 13),
    "OffsetCommit": (2, 10),
    "OffsetFetch": (1, 10),
    "FindCoordinator": (0, 6),
    "JoinGroup": (0, 9),
    "Heartbeat": (0, 4),
    "LeaveGroup": (0, 5),
    "SyncGroup": (0, 5),
    "DescribeGroups": (0, 6),
    "ListGroups": (0, 5),
    "ApiVersions": (0, 5),
    "CreateTopics": (2, 7),
    "DeleteTopics": (1, 6),
    "DeleteRecords": (0, 2),
    "InitProducerId": (0, 5),
    "OffsetForLeaderEpoch": (2, 4),
    "AddPartitionsToTxn": (0, 5),
    "AddOffsetsToTxn": (0, 4),
    "EndTxn": (0, 5),
    "WriteTxnMarkers": (1, 2),
    "TxnOffsetCommit": (0, 6),
    "OffsetDelete": (0, 0),
    "DescribeConfigs": (1, 4),
    "AlterConfigs": (0, 2),
    "DescribeLogDirs": (1, 5),
    "CreatePartitions": (0, 3),
    "DeleteGroups": (0, 3),
    "IncrementalAlterConfigs": (0, 1),
    "UpdateFeatures": (0, 2),
    "DescribeCluster": (0, 2),
    "DescribeProducers": (0, 0),
    "DescribeTransactions": (0, 0),
    "ListTransactions": (0, 2),
    "ListConfigResources": (0, 1),
    "DescribeTopicPartitions": (0, 0),
}
"""What an Apache Kafka 4.4.0 with default settings said in its answer to ApiVersions, of the APIs that are
served here. Kafka has no cluster mirroring yet: for its APIs KIP-1279 is the origin, where each has version 0 only."""


@pytest.mark.parametrize("key", sorted(TABLE))
def test_a_handler_is_what_its_row_says(key: int) -> None:
    served, api, module = TABLE[key], registry.by_key[key], module_of(key)
    found = describe(module)
    assert (found.key, found.name) == (key, api.name)
    assert (served.first_version, served.max_version) == module.VERSIONS
    assert api.min_version <= served.first_version <= served.max_version <= api.max_version
    span = f"{served.first_version}-{served.max_version}"
    assert found.paragraphs["Versions"].startswith((span, f"{served.first_version}."))
    context, request = inspect.signature(module.handle, eval_str=False).parameters.values()
    assert request.annotation == f"{api.name}Request"
    assert context.annotation == "RequestContext"


def test_the_ranges_are_those_of_kafka() -> None:
    ours = {registry.by_key[key].name: (served.min_version, served.max_version) for key, served in TABLE.items()}
    mirroring = {name for name in ours if registry.by_name[name].key in mirror_numbers.API_KEYS.values()}
    private = {name for name in ours if TABLE[registry.by_name[name].key].private}
    assert {name: span for name, span in ours.items() if name not in mirroring | private} == KAFKA_4_4_0
    assert {ours[name] for name in mirroring} == {(0, 0)}
    assert all(TABLE[registry.by_name[name].key].feature == mirror_numbers.FEATURE for name in mirroring)


def test_what_is_our_own_is_never_advertised() -> None:
    private = {key for key, served in TABLE.items() if served.private}
    assert private == {private_numbers.BACKUP}
    assert not private.intersection(advertised(mirroring_enabled=True))


def test_every_module_beside_the_table_is_in_it() -> None:
    modules = {path.stem for path in Path(handlers.__file__).parent.glob("*.py")} - {"__init__"}
    assert modules == {served.module for served in TABLE.values()}


def test_the_page_is_what_the_handlers_say() -> None:
    """Repair with: python -m kmirror.server.apis > docs/APIS.md"""
    assert (ROOT / "docs" / "APIS.md").read_text(encoding="utf-8") == page()


def test_a_docstring_without_form_is_found() -> None:
    module = type(handlers)("broken")
    for text in ("no title", "Name (1): x\n\nVersions: 1.", "Name (1): x\n\nSomething: else"):
        module.__doc__ = text
        with pytest.raises(ValueError, match="broken"):
            describe(module)
