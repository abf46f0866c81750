"""The table of APIs against the classes it names, and the numbers of mirroring against Kafka's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kmirror.protocol import mirror_numbers, registry
from kmirror.protocol.errors import ErrorCode, is_retriable, name_of
from kmirror.protocol.schema import schema_of
from tests.protocol import kafka_messages

API_FOLDER = Path(registry.__file__).with_name("api")


def test_the_table_says_what_the_classes_say() -> None:
    for api in registry.APIS:
        for cls, kind in ((api.request, "request"), (api.response, "response")):
            schema = schema_of(cls)
            assert (schema.kind, schema.key) == (kind, api.key)
            assert (schema.versions.low, schema.versions.high) == (api.min_version, api.max_version)
            first_flexible = [v for v in range(api.min_version, api.max_version + 1) if v in schema.flexible]
            assert first_flexible == list(range(max(api.flexible_from, api.min_version), api.max_version + 1))


def test_one_file_per_api_and_no_other() -> None:
    files = {path.stem for path in API_FOLDER.glob("*.py")} - {"__init__"}
    assert files == {api.module for api in registry.APIS}
    assert len(registry.by_key) == len(registry.by_name) == len(registry.APIS)


def test_importing_the_table_loads_no_schema() -> None:
    """Start-up time: a message class is made when its API is first used."""
    code = (
        "import sys, kmirror.protocol.registry, kmirror.protocol.frames\n"
        "loaded = [name for name in sys.modules if name.startswith(('kmirror.protocol.api.', 'construct', 'trio'))]\n"
        "assert not loaded, loaded\n"
        "kmirror.protocol.registry.by_name['Heartbeat'].request\n"
        "assert 'kmirror.protocol.api.heartbeat' in sys.modules\n"
        "assert 'kmirror.protocol.api.fetch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_api_of() -> None:
    fetch = registry.by_name["Fetch"]
    assert registry.api_of(fetch.request()) is registry.api_of(fetch.response()) is fetch
    with pytest.raises(KeyError):
        registry.api_of(object())


def collisions(api_keys: dict[str, int], errors: dict[str, int]) -> list[str]:
    """Numbers of mirroring that Kafka has given to something else."""
    found = []
    for ours, kafkas in ((mirror_numbers.API_KEYS, api_keys), (mirror_numbers.ERROR_CODES, errors)):
        by_number = {number: name for name, number in kafkas.items()}
        for name, number in ours.items():
            if by_number.get(number, name) != name:
                found.append(f"{name} = {number}, which Kafka calls {by_number[number]}")
            elif name in kafkas and kafkas[name] != number:
                found.append(f"{name} = {number}, Kafka has {kafkas[name]}")
    return found


def test_mirror_numbers_collide_with_nothing() -> None:
    extract = kafka_messages.fixture()
    assert collisions(extract["api_keys"], {name: code for code, name, _ in extract["errors"]}) == []
    assert len(set(mirror_numbers.API_KEYS.values())) == len(mirror_numbers.API_KEYS) == 13
    assert len(set(mirror_numbers.ERROR_CODES.values())) == len(mirror_numbers.ERROR_CODES)


def test_a_collision_would_be_found() -> None:
    assert collisions({"Something": 98}, {}) == ["ListClusterMirrors = 98, which Kafka calls Something"]
    assert collisions({}, {"ANYTHING": 147}) == ["READ_ONLY_TOPIC = 147, which Kafka calls ANYTHING"]
    assert collisions({"ListClusterMirrors": 120}, {}) == ["ListClusterMirrors = 98, Kafka has 120"]


@pytest.mark.kafka
def test_mirror_numbers_collide_with_nothing_in_the_newest_installed_kafka() -> None:
    versions = kafka_messages.installed_versions()
    assert versions, f"no Kafka below {kafka_messages.kafka_home()}; set {kafka_messages.HOME_VARIABLE}"
    keys = kafka_messages.api_keys(kafka_messages.messages_of(versions[-1]))
    assert collisions(keys, {name: code for code, name, _ in kafka_messages.error_codes(versions[-1])}) == []


def test_error_codes() -> None:
    assert ErrorCode(147) is ErrorCode.READ_ONLY_TOPIC
    assert int(ErrorCode.READ_ONLY_TOPIC) == 147
    assert name_of(3) == "UNKNOWN_TOPIC_OR_PARTITION"
    assert name_of(9999) == "9999"
    assert is_retriable(6) and not is_retriable(147) and not is_retriable(9999)


def test_the_show_command() -> None:
    command = [sys.executable, "-m", "kmirror.protocol", "show"]
    shown = subprocess.run([*command, "Fetch", "12"], capture_output=True, text=True, timeout=60, check=True).stdout
    assert "FetchRequest v12" in shown and "def decode(" in shown and "def encode(" in shown
    wrong = subprocess.run([*command, "Fetch", "99"], capture_output=True, text=True, timeout=60, check=False)
    assert wrong.returncode == 2
    assert "4-18" in wrong.stderr
