"""Apache Kafka's own message definitions, reduced to what decides the bytes.

The definitions are JSON files inside the `kafka-clients` and `kafka-metadata` jars. `kafka-4.4.0-messages.json` is an
extract of Kafka 4.4.0's (Apache License 2.0), so that the hermetic tests need no jar; this module makes it again:

    python -m tests.protocol.kafka_messages [VERSION] > tests/protocol/kafka-4.4.0-messages.json

Error codes stand in compiled code only, so the extract asks a JVM for them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

from kmirror.protocol import registry
from kmirror.protocol.internal import cluster_metadata, cluster_metadata_rest

HOME_VARIABLE = "KMIRROR_KAFKA_HOME"
FIXTURE = Path(__file__).with_name("kafka-4.4.0-messages.json")
EXTRA_CLIENT_MESSAGES = (
    "RequestHeader",
    "ResponseHeader",
    "EndTxnMarker",
    "LeaderChangeMessage",
    "SnapshotHeaderRecord",
    "SnapshotFooterRecord",
    "KRaftVersionRecord",
    "VotersRecord",
)
KEPT = ("name", "type", "versions", "nullableVersions", "tag", "taggedVersions", "default", "ignorable")
JAVA = """
import org.apache.kafka.common.protocol.Errors;
public class ListErrors {
    public static void main(String[] args) {
        for (Errors e : Errors.values())
            System.out.println(e.code() + " " + e.name() + " "
                + (e.exception() instanceof org.apache.kafka.common.errors.RetriableException));
    }
}
"""

Definition = dict[str, Any]


def kafka_home() -> Path:
    return Path(os.environ.get(HOME_VARIABLE, "~/.cache/kmirror-kafka")).expanduser()


def installed_versions() -> list[str]:
    """Versions whose jars are there, oldest first."""
    found = [path.parent.name for path in kafka_home().glob("libs/*/kafka-clients-*.jar")]
    return sorted(found, key=lambda version: [int(part) for part in re.findall(r"\d+", version)])


def without_comments(text: str) -> str:
    """Kafka's definitions are JSON with `//` comments."""
    whole_lines = re.sub(r"(?m)^\s*//.*$", "", text)
    return re.sub(r'(?m)\s//[^"\n]*$', "", whole_lines)


@cache
def from_jar(jar: Path) -> dict[str, Definition]:
    """Every definition in a jar, by name."""
    found = {}
    with zipfile.ZipFile(jar) as archive:
        for entry in archive.namelist():
            if re.fullmatch(r"common/(message|metadata)/\w+\.json", entry):
                definition = json.loads(without_comments(archive.read(entry).decode()))
                found[definition["name"]] = definition
    return found


def messages_of(version: str) -> dict[str, Definition]:
    """All definitions of an installed Kafka, clients and metadata."""
    libs = kafka_home() / "libs" / version
    definitions = dict(from_jar(libs / f"kafka-clients-{version}.jar"))
    metadata = libs / f"kafka-metadata-{version}.jar"
    if metadata.exists():
        definitions |= from_jar(metadata)
    return definitions


def reduced(definition: Definition) -> Definition:
    """Name, versions and fields; common structs are put in place of their names."""
    common = {struct["name"]: struct["fields"] for struct in definition.get("commonStructs", ())}

    def field(entry: Definition) -> Definition:
        kept = {key: entry[key] for key in KEPT if key in entry}
        inner = entry.get("fields") or common.get(entry["type"].removeprefix("[]"))
        if inner:
            kept["fields"] = [field(each) for each in inner]
        return kept

    head = {key: definition[key] for key in ("name", "type", "apiKey", "validVersions", "flexibleVersions")
            if key in definition}  # fmt: skip
    return head | {"fields": [field(each) for each in definition.get("fields", ())]}


def checked_names() -> list[str]:
    """The definitions that kmirror has a class for."""
    apis = [api for api in registry.APIS if api.key < 95]
    names = [f"{api.name}{kind}" for api in apis for kind in ("Request", "Response")]
    types = cluster_metadata._TYPES | cluster_metadata_rest.TYPES
    return [*names, *EXTRA_CLIENT_MESSAGES, *(cls.__name__ for _, cls in sorted(types.items()))]


def api_keys(definitions: dict[str, Definition]) -> dict[str, int]:
    """Every API key in use, ours or not."""
    return {
        name.removesuffix("Request"): definition["apiKey"]
        for name, definition in sorted(definitions.items())
        if definition["type"] == "request"
    }


def error_codes(version: str) -> list[list[Any]]:
    """[code, name, retriable] of every error, from the compiled enum."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "ListErrors.java")
        source.write_text(JAVA)
        command = ["java", "-cp", str(kafka_home() / "libs" / version / "*"), str(source)]
        output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
    rows = [line.split() for line in output.splitlines() if line.count(" ") == 2]
    return [[int(code), name, retriable == "true"] for code, name, retriable in rows]


def extract(version: str) -> dict[str, Any]:
    definitions = messages_of(version)
    return {
        "origin": f"Apache Kafka {version}: message definitions in kafka-clients and kafka-metadata, enum Errors",
        "license": "Apache-2.0",
        "made_by": "python -m tests.protocol.kafka_messages",
        "api_keys": api_keys(definitions),
        "errors": error_codes(version),
        "messages": [reduced(definitions[name]) for name in checked_names()],
    }


def write(content: dict[str, Any], out: Any) -> None:
    """One line per message: a change shows as one."""
    head = {key: value for key, value in content.items() if key != "messages"}
    lines = [f' "{key}": {json.dumps(value)}' for key, value in head.items()]
    messages = ",\n  ".join(json.dumps(message, separators=(",", ":")) for message in content["messages"])
    lines.append(f' "messages": [\n  {messages}\n ]')
    out.write("{\n" + ",\n".join(lines) + "\n}\n")


@cache
def fixture() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(FIXTURE.read_text())
    return content


if __name__ == "__main__":
    write(extract(sys.argv[1] if len(sys.argv) > 1 else installed_versions()[-1]), sys.stdout)
