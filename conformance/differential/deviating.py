"""A proxy that spoils one kind of answer: how the runner shows that it would notice.

It sits in front of a broker, passes every frame on, and rewrites the answers of one API with a `Deviation`. Switched on
only once the runner is ready, and made to leave alone the API versions that the runner itself uses for waiting.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from conformance.peers.processes import receive_exactly, split_address
from kmirror.protocol import registry
from kmirror.protocol.compile import decode, encode

RUNNERS_OWN = {"Metadata": 10, "ListOffsets": 4, "DescribeConfigs": 1, "IncrementalAlterConfigs": 0,
               "InitProducerId": 1, "DeleteTopics": 4, "FindCoordinator": 1}  # fmt: skip
"""Versions in which the runner asks for itself; an answer spoilt there would stop it instead of being compared."""


@dataclass(frozen=True, slots=True)
class Deviation:
    """What to do to an answer of `api`. `spoil` changes the message and says whether it did; None closes instead."""

    name: str
    api: str
    spoil: Callable[[Any, int], bool] | None
    delay_s: float = 0.0


class DeviatingProxy:
    """`with DeviatingProxy(address) as proxy`; `proxy.deviation` may be set at any time. `spoilt` counts."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.deviation: Deviation | None = None
        self.spoilt = 0
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> DeviatingProxy:
        threading.Thread(target=self._accept, name="deviating", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for sock in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            broker = socket.create_connection(split_address(self._target))
            self._sockets += [client, broker]
            threading.Thread(target=self._serve, args=(client, broker), daemon=True).start()

    def _serve(self, client: socket.socket, broker: socket.socket) -> None:
        """One request after the other, as the runner sends them; a Produce with acks=0 has no answer."""
        try:
            while True:
                request = _frame(client)
                broker.sendall(struct.pack(">i", len(request)) + request)
                api, version = registry.by_key[struct.unpack_from(">h", request)[0]], request[3]
                if api.name == "Produce" and _acks(request, api, version) == 0:
                    continue
                answer = self._spoil(api, version, _frame(broker))
                if answer is None:
                    return
                client.sendall(struct.pack(">i", len(answer)) + answer)
        except OSError:
            pass  # either side went away
        finally:
            for sock in (client, broker):
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def _spoil(self, api: registry.Api, version: int, answer: bytes) -> bytes | None:
        deviation = self.deviation
        if deviation is None or deviation.api != api.name or RUNNERS_OWN.get(api.name) == version:
            return answer
        if deviation.spoil is None:
            self.spoilt += 1
            return None
        offset = 4 + (1 if registry.response_header_version(api, version) else 0)
        message = decode(api.response, answer, version, offset=offset)
        if not deviation.spoil(message, version):
            return answer
        self.spoilt += 1
        time.sleep(deviation.delay_s)
        return answer[:offset] + encode(message, version)


def _frame(sock: socket.socket) -> bytes:
    (size_bytes,) = struct.unpack(">i", receive_exactly(sock, 4))
    return receive_exactly(sock, size_bytes)


def _acks(request: bytes, api: registry.Api, version: int) -> int:
    (client_id_bytes,) = struct.unpack_from(">h", request, 8)
    offset = 10 + max(0, client_id_bytes) + (1 if version >= api.flexible_from else 0)
    return int(decode(api.request, request, version, offset=offset).acks)


# -- what to spoil ---------------------------------------------------------------------------------------------------


def _produce_rows(message: Any) -> list[Any]:
    return [row for topic in message.responses for row in topic.partition_responses]


def _fetch_rows(message: Any) -> list[Any]:
    return [row for topic in message.responses for row in topic.partitions]


def _each(rows: Callable[[Any], list[Any]], change: Callable[[Any], bool]) -> Callable[[Any, int], bool]:
    """Spoils every row that `change` applies to, and says whether there was one."""
    return lambda message, _version: sum(change(row) for row in rows(message)) > 0


def _set(name: str, value: Any) -> Callable[[Any], bool]:
    """Rows whose field is not that already."""

    def change(row: Any) -> bool:
        if getattr(row, name) == value:
            return False
        setattr(row, name, value)
        return True

    return change


def _replace(name: str, old: Any, new: Any) -> Callable[[Any], bool]:
    return lambda row: getattr(row, name) == old and _set(name, new)(row)


def _add(name: str, amount: int) -> Callable[[Any], bool]:
    """Rows whose field is not negative."""
    return lambda row: getattr(row, name) >= 0 and _set(name, getattr(row, name) + amount)(row)


def _flip_last_byte(row: Any) -> bool:
    if not row.records:
        return False
    row.records = bytes(row.records[:-1]) + bytes([row.records[-1] ^ 1])
    return True


def _lose_last_element(name: str) -> Callable[[Any], bool]:
    def change(row: Any) -> bool:
        values = getattr(row, name)
        if not values:
            return False
        values.pop()
        return True

    return change


def _same_producer_id(message: Any, _version: int) -> bool:
    return message.error_code == 0 and _set("producer_id", 4711)(message)


def _topics(message: Any) -> list[Any]:
    return list(message.topics)


def _lists(message: Any) -> list[Any]:
    return [row for topic in message.topics for row in topic.partitions]


def _configs(message: Any) -> list[Any]:
    return [config for result in message.results for config in result.configs if config.name == "retention.ms"]


DEVIATIONS: tuple[Deviation, ...] = (
    Deviation("another base offset", "Produce", _each(_produce_rows, _add("base_offset", 1))),
    Deviation("another error for a bad batch", "Produce", _each(_produce_rows, _replace("error_code", 87, 2))),
    Deviation("a refusal that looks like success", "Produce", _each(_produce_rows, _replace("error_code", 2, 0))),
    Deviation("no log start offset", "Produce", _each(_produce_rows, _replace("log_start_offset", 0, -1))),
    Deviation("another high watermark", "Fetch", _each(_fetch_rows, _add("high_watermark", 1))),
    Deviation("one byte of the records", "Fetch", _each(_fetch_rows, _flip_last_byte)),
    Deviation("no records", "Fetch", _each(_fetch_rows, _set("records", b""))),
    Deviation("another error for an offset", "Fetch", _each(_fetch_rows, _replace("error_code", 1, 3))),
    Deviation("an empty list for null", "Fetch", _each(_fetch_rows, _replace("aborted_transactions", None, []))),
    Deviation("no session", "Fetch", lambda message, version: version >= 7 and _set("session_id", 0)(message)),
    Deviation("a wait where none is due", "Fetch",
              _each(_fetch_rows, lambda row: row.error_code == 1), delay_s=0.3),
    Deviation("another offset for a time", "ListOffsets", _each(_lists, _add("offset", 1))),
    Deviation("another time", "ListOffsets", _each(_lists, _add("timestamp", 1))),
    Deviation("a list that is too short", "Metadata",
              lambda message, _version: _lose_last_element("topics")(message)),
    Deviation("another leader epoch", "Metadata",
              lambda message, version: version >= 7 and _each(_lists, _add("leader_epoch", 1))(message, version)),
    Deviation("another topic's id", "Metadata",
              lambda message, version: version > 10 and _each(_topics, _set("topic_id", b"i" * 16))(message, version)),
    Deviation("another error for a name", "CreateTopics",
              _each(_topics, _replace("error_code", 36, 17))),
    Deviation("another value", "DescribeConfigs", _each(_configs, _set("value", "42"))),
    Deviation("a missing configuration", "DescribeConfigs",
              _each(lambda message: list(message.results), _lose_last_element("configs"))),
    Deviation("another end of an epoch", "OffsetForLeaderEpoch", _each(_lists, _add("end_offset", 1))),
    Deviation("another low watermark", "DeleteRecords", _each(_lists, _add("low_watermark", 1))),
    Deviation("a producer id given twice", "InitProducerId", _same_producer_id),
    Deviation("a refused change accepted", "IncrementalAlterConfigs",
              _each(lambda message: list(message.responses), _replace("error_code", 40, 0))),
    Deviation("a closed connection", "DescribeTopicPartitions", None),
)  # fmt: skip
"""Every kind that the runner must notice."""
