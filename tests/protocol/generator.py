"""Random messages of any class and version, from a seed: what the round trips and the fuzz tests feed on."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from kmirror.protocol import headers, registry
from kmirror.protocol.internal import cluster_metadata, cluster_metadata_rest, consumer_offsets, control, mirror_state
from kmirror.protocol.schema import Field, schema_of

INTEGER_BITS = {"Int8": 7, "Int16": 15, "Int32": 31, "Int64": 63, "Uint16": 16, "Uint32": 32}
SIGNED = ("Int8", "Int16", "Int32", "Int64")
TEXTS = ("", "a", "my-topic", "__consumer_offsets", "größe", "東京", "\U0001f600", "x" * 127, "x" * 128, "y" * 300)


def random_message(rng: random.Random, cls: type[Any], version: int, *, max_elements: int = 3) -> Any:
    """A message whose fields all exist in `version`; the others keep their defaults."""
    message = cls()
    for field in schema_of(cls).fields:
        if version not in field.versions:
            continue
        if version in field.tagged and rng.random() < 0.4:
            continue  # most peers leave a tagged field at its default
        setattr(message, field.name, random_value(rng, field, version, max_elements))
    return message


def random_value(rng: random.Random, field: Field, version: int, max_elements: int) -> Any:
    if version in field.nullable and rng.random() < 0.25:
        return None
    if field.type.is_array:
        return [_one(rng, field, version, max_elements) for _ in range(rng.randint(0, max_elements))]
    return _one(rng, field, version, max_elements)


def _one(rng: random.Random, field: Field, version: int, max_elements: int) -> Any:
    name = field.type.name
    if field.type.struct is not None:
        return random_message(rng, field.type.struct, version, max_elements=max_elements)
    if name in INTEGER_BITS:
        bits = rng.randint(0, INTEGER_BITS[name])
        value = rng.getrandbits(bits) if bits else 0
        return -value - 1 if name in SIGNED and rng.random() < 0.3 else value
    if name == "Bool":
        return rng.random() < 0.5
    if name == "Float64":
        return rng.choice((0.0, -1.5, 1e300))
    if name == "String":
        return rng.choice(TEXTS)
    if name == "Uuid":
        return rng.randbytes(16)
    return rng.randbytes(rng.choice((0, 1, 61, 127, 200)))


def message_classes() -> Iterator[type[Any]]:
    """Every message class of the package: requests, responses, headers, records."""
    for api in registry.APIS:
        yield api.request
        yield api.response
    for module in (headers, cluster_metadata, cluster_metadata_rest, consumer_offsets, control, mirror_state):
        for value in vars(module).values():
            own = isinstance(value, type) and value.__module__ == module.__name__
            if own and "__declaration__" in value.__dict__ and schema_of(value).kind == "data":
                yield value


def all_versions(cls: type[Any]) -> range:
    versions = schema_of(cls).versions
    return range(versions.low, versions.high + 1)
