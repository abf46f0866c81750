"""Our schemas against Apache Kafka's message definitions: field by field, in every version.

A wrong schema agrees with itself; this is the check that it agrees with Kafka. Hermetic against the committed extract
of 4.4.0, and against the newest Kafka that is installed (marked `kafka`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kmirror.protocol import headers, registry
from kmirror.protocol.errors import ErrorCode
from kmirror.protocol.internal import cluster_metadata, cluster_metadata_rest, control
from kmirror.protocol.mirror_numbers import ERROR_CODES
from kmirror.protocol.schema import STRUCT, Field, Versions, parse_versions, schema_of
from kmirror.protocol.uuids import ZERO
from tests.protocol import kafka_messages

WIRE_TYPES = {
    "int8": "Int8",
    "int16": "Int16",
    "int32": "Int32",
    "int64": "Int64",
    "uint16": "Uint16",
    "uint32": "Uint32",
    "float64": "Float64",
    "bool": "Bool",
    "string": "String",
    "uuid": "Uuid",
    "bytes": "Bytes",
    "records": "Records",
}
ZEROS = {"String": "", "Bool": False, "Uuid": ZERO, "Bytes": b"", "Records": b"", "Float64": 0.0}


def snake_case(name: str) -> str:
    """Kafka's `ThrottleTimeMs` as `throttle_time_ms`; `KRaft` is one word."""
    out: list[str] = []
    text = name.replace("KRaft", "Kraft")
    for index, letter in enumerate(text):
        before = text[index - 1] if index else ""
        after = text[index + 1] if index + 1 < len(text) else ""
        if letter.isupper() and index and (not before.isupper() or after.islower()):
            out.append("_")
        out.append(letter.lower())
    return "".join(out)


def our_class(definition: dict[str, Any]) -> type[Any]:
    name = definition["name"]
    if definition["type"] in ("request", "response"):
        api = registry.by_key[definition["apiKey"]]
        return api.request if definition["type"] == "request" else api.response
    for module in (headers, cluster_metadata, cluster_metadata_rest, control):
        if hasattr(module, name):
            return getattr(module, name)  # type: ignore[no-any-return]
    raise AssertionError(f"no class for {name}")


def default_of(entry: dict[str, Any], kind: str) -> Any:
    """Kafka writes defaults as text."""
    given = entry.get("default")
    if given is None or given == "":
        return ZEROS.get(kind, 0)
    if given == "null":
        return None
    if kind == "Bool":
        return str(given).lower() == "true"
    return given if kind == "String" else int(str(given), 0)


def differences(definition: dict[str, Any]) -> Iterator[str]:
    """What is different, as sentences; nothing when our class is Kafka's message."""
    cls = our_class(definition)
    schema = schema_of(cls)
    valid = parse_versions(definition["validVersions"])
    if schema.versions != valid:
        yield f"versions {schema.versions}, Kafka has {valid}"
    if "apiKey" in definition and schema.key != definition["apiKey"]:
        yield f"key {schema.key}, Kafka has {definition['apiKey']}"
    flexible = parse_versions(definition["flexibleVersions"])
    for version in range(valid.low, valid.high + 1):
        if (version in schema.flexible) != (version in flexible):
            yield f"v{version}: flexible is {version in schema.flexible}"
        yield from field_differences(schema.fields, definition["fields"], version, f"{cls.__name__} v{version}")
    yield from default_differences(schema.fields, definition["fields"], valid, cls.__name__)


def field_differences(ours: tuple[Field, ...], theirs: list[dict[str, Any]], version: int, path: str) -> Iterator[str]:
    """Order, names, types, nullability and tags of the fields that exist in one version."""
    present = [field for field in ours if version in field.versions]
    expected = [entry for entry in theirs if version in parse_versions(entry["versions"])]
    names, wanted = [field.name for field in present], [snake_case(entry["name"]) for entry in expected]
    if names != wanted:
        yield f"{path}: fields {names}, Kafka has {wanted}"
        return
    for field, entry in zip(present, expected, strict=True):
        where = f"{path} {field.name}"
        text = entry["type"].removeprefix("[]")
        if field.type.is_array != entry["type"].startswith("[]") or field.type.name != WIRE_TYPES.get(text, STRUCT):
            yield f"{where}: type {field.type}, Kafka has {entry['type']}"
        nullable = version in parse_versions(entry.get("nullableVersions", "none"))
        if (version in field.nullable) != nullable:
            yield f"{where}: nullable is {version in field.nullable}"
        tag = entry.get("tag") if version in parse_versions(entry.get("taggedVersions", "none")) else None
        if (field.tag if version in field.tagged else None) != tag:
            yield f"{where}: tag {field.tag}, Kafka has {tag}"
        if field.type.struct is not None:
            inner = schema_of(field.type.struct).fields
            yield from field_differences(inner, entry["fields"], version, where)


def default_differences(
    ours: tuple[Field, ...], theirs: list[dict[str, Any]], valid: Versions, path: str
) -> Iterator[str]:
    """Defaults, and what may be left out silently; both only matter for fields that exist in some valid version."""
    by_name = {snake_case(entry["name"]): entry for entry in theirs}
    for field in ours:
        entry = by_name.get(field.name)
        if entry is None:
            yield f"{path}: Kafka has no field {field.name}"
            continue
        if field.type.is_array:
            wanted: Any = None if entry.get("default") == "null" else []
        elif field.type.struct is not None:
            wanted = None if entry.get("default") == "null" else field.type.struct
        else:
            wanted = default_of(entry, field.type.name)
        if field.default != wanted:
            yield f"{path} {field.name}: default {field.default!r}, Kafka has {wanted!r}"
        versions = parse_versions(entry["versions"])
        may_be_absent = versions.low > valid.low or versions.high < valid.high
        if may_be_absent and field.ignorable != entry.get("ignorable", False):
            yield f"{path} {field.name}: ignorable is {field.ignorable}"
        if field.type.struct is not None:
            yield from default_differences(schema_of(field.type.struct).fields, entry["fields"], valid, path)


@pytest.mark.parametrize("definition", kafka_messages.fixture()["messages"], ids=lambda d: d["name"])
def test_schema_is_kafkas(definition: dict[str, Any]) -> None:
    assert list(differences(definition)) == []


def test_the_extract_covers_every_schema() -> None:
    extracted = [message["name"] for message in kafka_messages.fixture()["messages"]]
    assert extracted == kafka_messages.checked_names()


def test_the_check_can_fail() -> None:
    fetch = next(m for m in kafka_messages.fixture()["messages"] if m["name"] == "FetchRequest")
    fields = [dict(entry) for entry in fetch["fields"]]
    wrong_type = [entry | {"type": "int64"} if entry["name"] == "MinBytes" else entry for entry in fields]
    assert any("min_bytes: type" in line for line in differences(fetch | {"fields": wrong_type}))
    wrong_order = [*fields[:-2], fields[-1], fields[-2]]
    assert any("fields" in line for line in differences(fetch | {"fields": wrong_order}))
    assert any("versions" in line for line in differences(fetch | {"validVersions": "4-19"}))
    wrong_default = [entry | {"default": "7"} if entry["name"] == "MaxBytes" else entry for entry in fields]
    assert any("max_bytes: default" in line for line in differences(fetch | {"fields": wrong_default}))


def test_error_codes_are_kafkas() -> None:
    kafka = {name: (code, retriable) for code, name, retriable in kafka_messages.fixture()["errors"]}
    ours = {code.name: (code.value, code.retriable) for code in ErrorCode if code.name not in ERROR_CODES}
    assert ours == kafka
    assert all(code.message for code in ErrorCode)


@pytest.mark.kafka
def test_schemas_and_errors_are_those_of_the_newest_installed_kafka() -> None:
    versions = kafka_messages.installed_versions()
    assert versions, f"no Kafka below {kafka_messages.kafka_home()}; set {kafka_messages.HOME_VARIABLE}"
    definitions = kafka_messages.messages_of(versions[-1])
    found = [
        f"{name}: {line}"
        for name in kafka_messages.checked_names()
        for line in differences(kafka_messages.reduced(definitions[name]))
    ]
    assert found == []
    codes = {name: code for code, name, _ in kafka_messages.error_codes(versions[-1])}
    assert codes == {code.name: code.value for code in ErrorCode if code.name not in ERROR_CODES}
