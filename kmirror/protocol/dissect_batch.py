"""The record batch and the record, declared by hand in construct.

On purpose written from the format's description and not from `records` or the schema: a second statement of the same
format is worth more than a derived one, and a test holds both to the same bytes. Only for people and tests. L1.
"""

from __future__ import annotations

import io
from typing import Any

import construct
from construct import (
    Array,
    Bytes,
    GreedyRange,
    Int8sb,
    Int16sb,
    Int32sb,
    Int32ub,
    Int64sb,
    Prefixed,
    Struct,
    ZigZag,
    this,
)

from kmirror.errors import CorruptData, DecodeError
from kmirror.protocol.compression import Compression, decompress
from kmirror.protocol.dissect import Node, show


def _size_of(name: str) -> Any:
    """A varint size, -1 for null, computed from the member `name` when building."""
    return construct.Rebuild(ZigZag, lambda this: -1 if this[name] is None else len(this[name]))


HEADER = Struct(
    "name_size" / _size_of("name"),
    "name" / Bytes(this.name_size),
    "value_size" / _size_of("value"),
    "value" / construct.If(this.value_size >= 0, Bytes(this.value_size)),
)
RECORD_BODY = Struct(
    "attributes" / Int8sb,
    "timestamp_delta" / ZigZag,
    "offset_delta" / ZigZag,
    "key_size" / _size_of("key"),
    "key" / construct.If(this.key_size >= 0, Bytes(this.key_size)),
    "value_size" / _size_of("value"),
    "value" / construct.If(this.value_size >= 0, Bytes(this.value_size)),
    "header_count" / _size_of("headers"),
    "headers" / Array(this.header_count, HEADER),
)
RECORD = Prefixed(ZigZag, RECORD_BODY)
RECORDS = GreedyRange(RECORD)

BATCH = Struct(
    "base_offset" / Int64sb,
    "batch_length" / Int32sb,
    "partition_leader_epoch" / Int32sb,
    "magic" / Int8sb,
    "crc" / Int32ub,
    "attributes" / Int16sb,
    "last_offset_delta" / Int32sb,
    "base_timestamp" / Int64sb,
    "max_timestamp" / Int64sb,
    "producer_id" / Int64sb,
    "producer_epoch" / Int16sb,
    "base_sequence" / Int32sb,
    "record_count" / Int32sb,
    "payload" / Bytes(this.batch_length - 49),
)
"""The length counts from the leader epoch on: 49 bytes of header and the payload, compressed or not."""

ATTRIBUTE_BITS = ((0x08, "LogAppendTime"), (0x10, "transactional"), (0x20, "control"), (0x40, "delete horizon"))


def describe_attributes(attributes: int) -> str:
    try:
        codec = Compression(attributes & 0x07).name.lower()
    except ValueError:
        codec = f"unknown codec {attributes & 0x07}"
    return ", ".join([codec, *(text for bit, text in ATTRIBUTE_BITS if attributes & bit)])


def dissect_batches(data: bytes, *, shift: int = 0) -> list[Node]:
    """The batches in `data`; `shift` is added to every offset. The last may be cut: that is said, not raised."""
    nodes: list[Node] = []
    position = 0
    while position < len(data):
        node = _batch(data, position, shift)
        nodes.append(node)
        if node.error is not None and node.end <= shift + position:
            break
        position = node.end - shift
    return nodes


def _context() -> Any:
    """What construct's own Struct expects to find."""
    flags = {"_parsing": True, "_building": False, "_sizing": False, "_params": construct.Container()}
    return construct.Container(**flags)


def _located(struct: Any, stream: io.BytesIO, parent: Node, shift: int, context: Any) -> None:
    """Parse a construct Struct member by member and note where each one lies."""
    for member in struct.subcons:
        start = stream.tell()
        value = member._parsereport(stream, context, "")
        context[member.name] = value
        shown = _headers_text(value) if isinstance(value, list) else value
        parent.children.append(Node(member.name, _kind(member), start + shift, stream.tell() + shift, shown))


def _headers_text(headers: list[Any]) -> str:
    """A record's headers in one line: names repeat and order counts, so no dict."""
    return ", ".join(f"{h.name.decode(errors='replace')}={show('value', h.value)}" for h in headers)


def _kind(member: Any) -> str:
    names = {Int8sb: "int8", Int16sb: "int16", Int32sb: "int32", Int64sb: "int64", Int32ub: "uint32", ZigZag: "varint"}
    if isinstance(member.subcon, construct.Rebuild):  # see _size_of
        return "varint"
    if isinstance(member.subcon, Array):
        return "headers"
    return next((name for subcon, name in names.items() if member.subcon is subcon), "bytes")


def _batch(data: bytes, position: int, shift: int) -> Node:
    node = Node("batch", "record batch", position + shift, position + shift)
    stream = io.BytesIO(data)
    stream.seek(position)
    context = _context()
    try:
        _located(BATCH, stream, node, shift, context)
    except construct.ConstructError as error:
        node.error = f"cut or not a batch: {' '.join(str(error).split())}"
        node.end = len(data) + shift
        return node
    node.end = stream.tell() + shift
    attributes = next(child for child in node.children if child.name == "attributes")
    attributes.value = f"{attributes.value} ({describe_attributes(context.attributes)})"
    payload = node.children[-1]
    if context.magic != 2:
        node.error = f"magic {context.magic}: not taken further apart"
        return node
    raw = payload.value
    try:
        if context.attributes & 0x07:
            raw = decompress(Compression(context.attributes & 0x07), raw)
            payload.name = f"payload (decompressed to {len(raw)} bytes, in which the offsets below count)"
        payload.children = _records(raw, 0 if context.attributes & 0x07 else payload.start, context)
    except (CorruptData, DecodeError, ValueError, construct.ConstructError) as error:
        node.error = f"payload: {' '.join(str(error).split())}"
    return node


def _records(raw: bytes, shift: int, batch: Any) -> list[Node]:
    stream = io.BytesIO(raw)
    nodes = []
    for index in range(batch.record_count):
        start = stream.tell()
        size = ZigZag._parsereport(stream, _context(), "")
        end = stream.tell() + size
        if not 0 <= size <= len(raw) - stream.tell():
            raise CorruptData(f"record {index} has {size} bytes")
        body_stream = io.BytesIO(raw[:end])
        body_stream.seek(stream.tell())
        node = Node(f"record {index}", "record", start + shift, end + shift)
        nodes.append(node)
        context = _context()
        _located(RECORD_BODY, body_stream, node, shift, context)
        if batch.attributes & 0x20:
            node.children += _control(context)
        stream.seek(end)
    return nodes


def _control(record: Any) -> list[Node]:
    from kmirror.protocol.internal import control

    type_id = control.decode_control_key(record.key or b"")
    meaning = control.decode_control_value(type_id, record.value or b"")
    return [Node("meaning", type(meaning).__name__, value=f"type {type_id}: {meaning!r}")]
