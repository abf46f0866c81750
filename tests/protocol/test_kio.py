"""kio, another codec from PyPI whose classes are generated from Kafka's definitions, where it covers an API."""

from __future__ import annotations

import importlib
import io
import random
from typing import Any

import pytest

from kmirror.protocol import registry
from kmirror.protocol.compile import encode
from tests.protocol.generator import random_message

pytestmark = pytest.mark.peers

LEAST_COVERED = 300
"""(API, version, direction) triples; fewer would mean that the comparison stopped finding kio's classes."""


def kio_class(api: registry.Api, version: int, kind: str) -> Any:
    try:
        module = importlib.import_module(f"kio.schema.{api.module}.v{version}.{kind}")
    except ImportError:
        return None
    return getattr(module, f"{api.name}{kind.title()}")


def triples() -> list[tuple[registry.Api, int, str]]:
    return [
        (api, version, kind)
        for api in registry.APIS
        for version in range(api.min_version, api.max_version + 1)
        for kind in ("request", "response")
        if kio_class(api, version, kind) is not None
    ]


def without_what_kio_cannot_hold(message: Any) -> Any:
    """kio reads durations and times as such: values outside their range are a matter of its types, not of bytes."""
    for name in getattr(message, "__slots__", ()):
        value = getattr(message, name)
        for item in value if isinstance(value, list) else [value]:
            without_what_kio_cannot_hold(item)
        if isinstance(value, int) and not isinstance(value, bool):
            if name.endswith("error_code"):
                setattr(message, name, abs(value) % 120)
            elif name.endswith("_ms") or "timestamp" in name:
                setattr(message, name, abs(value) % 2**31)
    return message


def test_kio_reads_and_writes_our_bytes(rng: random.Random) -> None:
    kio_serial = importlib.import_module("kio.serial")  # here, so that collecting the tests needs no extra
    covered = triples()
    assert len(covered) >= LEAST_COVERED
    for api, version, kind in covered:
        cls = kio_class(api, version, kind)
        for _ in range(3):
            message = without_what_kio_cannot_hold(random_message(rng, getattr(api, kind), version))
            data = encode(message, version)
            entity, size = kio_serial.entity_reader(cls)(data, 0)
            assert size == len(data), f"{api.name} v{version} {kind}: kio stops at {size} of {data.hex()}"
            out = io.BytesIO()
            kio_serial.entity_writer(cls)(out, entity)
            assert out.getvalue() == data, f"{api.name} v{version} {kind}"
