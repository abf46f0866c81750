"""The patient backend: the same schema as `construct` objects, for people, dumps and as the oracle of a fuzz test.

It shares the parsed schema with the fast backend and nothing else: it reads a stream, field by field, and remembers
where each began and ended. Record batches are declared in `dissect_batch`, by hand and without the schema.

Never imported on the request path (construct alone costs 17 ms), and `construct.compile()` is not used: it accepted
truncated messages. What must hold: both backends accept, refuse and understand the same bytes. L1.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import construct

from kmirror.errors import DecodeError, EncodeError
from kmirror.limits import MAX_STRING_BYTES, MAX_VARINT_BYTES
from kmirror.protocol import errors, headers, registry, uuids
from kmirror.protocol.compile import Buffer
from kmirror.protocol.schema import STRUCT, Field, Schema, Type, schema_of
from kmirror.slices import FileSlice

T = TypeVar("T")

SHOWN_BYTES = 32
"""Longer byte strings are cut in the readable form."""


@dataclass(slots=True)
class Node:
    """One field as it lies in the bytes: [start, end) and what it means. `error` says why nothing follows."""

    name: str
    kind: str
    start: int = 0
    end: int = 0
    value: Any = None
    children: list[Node] = field(default_factory=list)
    error: str | None = None

    def lines(self, depth: int = 0) -> Iterator[str]:
        """Offset, size, name, value, wire type; one line per field."""
        shown = "" if self.children else f" = {show(self.name, self.value)}"
        yield f"{self.start:8d} {self.end - self.start:6d}  {'  ' * depth}{self.name}{shown}  <{self.kind}>"
        for child in self.children:
            yield from child.lines(depth + 1)
        if self.error is not None:
            yield f"{self.end:8d} {'':6}  {'  ' * (depth + 1)}!! {self.error}"

    def find(self, path: str) -> Node:
        """The node at `topics/0/name`. Raises KeyError."""
        node = self
        for part in path.split("/"):
            found = [child for child in node.children if child.name == part]
            if not found:
                raise KeyError(path)
            node = found[0]
        return node


def show(name: str, value: Any) -> str:
    """A value for people: ids as text, error codes with their name, long bytes cut."""
    if value is None:
        return "null"
    if name.endswith("error_code") and isinstance(value, int):
        return f"{value} ({errors.name_of(value)})"
    if isinstance(value, bytes | memoryview):
        if name.endswith("_id") and len(value) == uuids.SIZE_BYTES:
            return uuids.to_text(bytes(value))
        cut = " …" if len(value) > SHOWN_BYTES else ""
        return f"[{len(value)}] {bytes(value[:SHOWN_BYTES]).hex(' ')}{cut}"
    return repr(value) if isinstance(value, str) else str(value)


# --- construct objects --------------------------------------------------------------------------------------------


def left_bytes(stream: io.BytesIO) -> int:
    return len(stream.getbuffer()) - stream.tell()


class UVarint(construct.Construct):  # type: ignore[misc]
    """An unsigned varint of at most 32 bits."""

    def _parse(self, stream: Any, context: Any, path: str) -> int:
        value: int = 0
        for index in range(MAX_VARINT_BYTES):
            byte: int = construct.stream_read(stream, 1, path)[0]
            value += (byte & 0x7F) << 7 * index
            if byte < 128:
                if value >= 2**32:
                    break
                return value
        raise construct.IntegerError("varint of more than 32 bits", path=path)

    def _build(self, obj: int, stream: Any, context: Any, path: str) -> int:
        if not 0 <= obj < 2**32:
            raise construct.IntegerError(f"{obj} is no unsigned varint of 32 bits", path=path)
        rest = obj
        while rest >= 128:
            construct.stream_write(stream, bytes([rest % 128 + 128]), 1, path)
            rest //= 128
        construct.stream_write(stream, bytes([rest]), 1, path)
        return obj


class Length(construct.Adapter):  # type: ignore[misc]
    """A length or count; null is None. Compact ones are stored one higher, zero is null."""

    def __init__(self, plain: Any, *, compact: bool, nullable: bool) -> None:
        super().__init__(UVarint() if compact else plain)
        self.bias = 1 if compact else 0
        self.nullable = nullable

    def _decode(self, obj: int, context: Any, path: str) -> int | None:
        size = obj - self.bias
        if size == -1 and self.nullable:
            return None
        if size < 0:
            raise construct.CheckError(f"length {size} (null is -1)", path=path)
        return size

    def _encode(self, obj: int | None, context: Any, path: str) -> int:
        if obj is None and not self.nullable:
            raise construct.CheckError("null where this version does not allow it", path=path)
        return (-1 if obj is None else obj) + self.bias


class Sized(construct.Construct):  # type: ignore[misc]
    """A string, byte string or records: length and bytes."""

    def __init__(self, length: Length, *, is_string: bool) -> None:
        super().__init__()
        self.length = length
        self.is_string = is_string

    def _parse(self, stream: Any, context: Any, path: str) -> Any:
        size = self.length._parsereport(stream, context, path)
        if size is None:
            return None
        if self.is_string and size > MAX_STRING_BYTES:
            raise construct.CheckError(f"string of {size} bytes", path=path)
        raw = construct.stream_read(stream, size, path)
        return raw.decode("utf-8", "replace") if self.is_string else raw

    def _build(self, obj: Any, stream: Any, context: Any, path: str) -> Any:
        raw = obj
        if self.is_string and obj is not None:
            raw = obj.encode()
            if len(raw) > MAX_STRING_BYTES:
                raise construct.CheckError(f"string of {len(raw)} bytes", path=path)
        elif isinstance(obj, list):
            raw = b"".join(piece.read() if isinstance(piece, FileSlice) else piece for piece in obj)
        self.length._build(None if raw is None else len(raw), stream, context, path)
        if raw is not None:
            construct.stream_write(stream, bytes(raw), len(raw), path)
        return obj


class Spot(construct.Construct):  # type: ignore[misc]
    """A named part: parses to a `Node`, which joins the tree before it is complete, so that an error shows how far
    it got."""

    def __init__(self, name: str, kind: str, inner: Any) -> None:
        super().__init__()
        self.name = name
        self.kind = kind
        self.inner = inner

    def _parse(self, stream: Any, context: Any, path: str) -> Node:
        node = Node(self.name, self.kind, start=stream.tell(), end=stream.tell())
        context.parent.children.append(node)
        outer, context.parent = context.parent, node
        node.value = self.inner._parsereport(stream, context, f"{path}.{self.name}")
        context.parent = outer
        node.end = stream.tell()
        return node

    def _build(self, obj: Any, stream: Any, context: Any, path: str) -> Any:
        return self.inner._build(obj, stream, context, f"{path}.{self.name}")


class Elements(construct.Construct):  # type: ignore[misc]
    """An array: count and elements, each a node named by its index."""

    def __init__(self, count: Length, kind: str, element: Any) -> None:
        super().__init__()
        self.count = count
        self.kind = kind
        self.element = element

    def _parse(self, stream: Any, context: Any, path: str) -> list[Any] | None:
        count = self.count._parsereport(stream, context, path)
        if count is None:
            return None
        if count > left_bytes(stream):
            raise construct.CheckError(f"{count} elements, {left_bytes(stream)} bytes left", path=path)
        spots = (Spot(str(index), self.kind, self.element) for index in range(count))
        return [spot._parsereport(stream, context, path).value for spot in spots]

    def _build(self, obj: list[Any] | None, stream: Any, context: Any, path: str) -> Any:
        self.count._build(None if obj is None else len(obj), stream, context, path)
        for index, value in enumerate(obj or ()):
            self.element._build(value, stream, context, f"{path}[{index}]")
        return obj


class Fields(construct.Construct):  # type: ignore[misc]
    """A message or struct in one version: parses to an object of its class."""

    def __init__(self, schema: Schema, version: int, *, flexible: bool) -> None:
        super().__init__()
        self.schema = schema
        present = [f for f in schema.fields if version in f.versions]
        self.regular = [(f, _spot(f, version, flexible)) for f in present if version not in f.tagged]
        tagged = [f for f in present if version in f.tagged]
        self.tagged = {f.tag or 0: (f, _spot(f, version, flexible)) for f in sorted(tagged, key=lambda f: f.tag or 0)}
        self.lost = [f for f in schema.fields if version not in f.versions and not f.ignorable]
        self.flexible = flexible

    def _parse(self, stream: Any, context: Any, path: str) -> Any:
        message = self.schema.cls()
        for f, spot in self.regular:
            setattr(message, f.name, spot._parsereport(stream, context, path).value)
        if self.flexible:
            Spot("tagged fields", "tags", _Tags(self, message))._parsereport(stream, context, path)
        return message

    def _build(self, obj: Any, stream: Any, context: Any, path: str) -> Any:
        default = self.schema.cls()
        for f in self.lost:
            if getattr(obj, f.name) != getattr(default, f.name):
                raise construct.CheckError(f"{f.name} does not exist in this version", path=path)
        for f, spot in self.regular:
            spot._build(getattr(obj, f.name), stream, context, path)
        if self.flexible:
            differs = {
                tag: f for tag, (f, _) in self.tagged.items() if getattr(obj, f.name) != getattr(default, f.name)
            }
            UVarint()._build(len(differs), stream, context, path)
            for tag, f in differs.items():
                part = io.BytesIO()
                self.tagged[tag][1]._build(getattr(obj, f.name), part, context, path)
                UVarint()._build(tag, stream, context, path)
                UVarint()._build(len(part.getvalue()), stream, context, path)
                construct.stream_write(stream, part.getvalue(), len(part.getvalue()), path)
        return obj


class _Tags(construct.Construct):  # type: ignore[misc]
    """The tagged fields at the end of a flexible struct; unknown ones are kept as bytes, for show."""

    def __init__(self, fields: Fields, message: Any) -> None:
        super().__init__()
        self.fields = fields
        self.message = message

    def _parse(self, stream: Any, context: Any, path: str) -> int:
        count: int = UVarint()._parsereport(stream, context, path)
        for _ in range(count):
            tag = UVarint()._parsereport(stream, context, path)
            size = UVarint()._parsereport(stream, context, path)
            if size > left_bytes(stream):
                raise construct.StreamError(f"tag {tag}: length {size}, {left_bytes(stream)} bytes left", path=path)
            known = self.fields.tagged.get(tag)
            if known is None:
                Spot(f"unknown tag {tag}", "bytes", construct.Bytes(size))._parsereport(stream, context, path)
                continue
            end = stream.tell() + size
            setattr(self.message, known[0].name, known[1]._parsereport(stream, context, path).value)
            if stream.tell() != end:
                raise construct.CheckError(f"tag {tag} should end at {end}, ends at {stream.tell()}", path=path)
        return count


class _NullableStruct(construct.Construct):  # type: ignore[misc]
    """One byte, negative for null, then the struct."""

    def __init__(self, fields: Fields) -> None:
        super().__init__()
        self.fields = fields

    def _parse(self, stream: Any, context: Any, path: str) -> Any:
        if construct.Int8sb._parsereport(stream, context, path) < 0:
            return None
        return self.fields._parsereport(stream, context, path)

    def _build(self, obj: Any, stream: Any, context: Any, path: str) -> Any:
        construct.Int8sb._build(-1 if obj is None else 1, stream, context, path)
        if obj is not None:
            self.fields._build(obj, stream, context, path)
        return obj


_PLAIN: dict[str, Any] = {
    "Int8": construct.Int8sb,
    "Int16": construct.Int16sb,
    "Int32": construct.Int32sb,
    "Int64": construct.Int64sb,
    "Uint16": construct.Int16ub,
    "Uint32": construct.Int32ub,
    "Float64": construct.Float64b,
    "Bool": construct.Flag,
    "Uuid": construct.Bytes(16),
}


def _spot(f: Field, version: int, flexible: bool) -> Spot:
    compact = flexible and (f.flexible is None or version in f.flexible)
    nullable = version in f.nullable
    kind = f.type.struct.__name__ if f.type.struct is not None else f.type.name.lower()
    if not f.type.is_array:
        inner = _one(f.type, version, flexible=flexible, compact=compact, nullable=nullable)
        return Spot(f.name, f"nullable {kind}" if nullable else kind, inner)
    element = _one(f.type, version, flexible=flexible, compact=compact, nullable=False)
    count = Length(construct.Int32sb, compact=compact, nullable=nullable)
    return Spot(f.name, f"{'nullable ' if nullable else ''}array of {kind}", Elements(count, kind, element))


def _one(type_: Type, version: int, *, flexible: bool, compact: bool, nullable: bool) -> Any:
    if type_.name in _PLAIN:
        return _PLAIN[type_.name]
    if type_.name == STRUCT:
        assert type_.struct is not None
        fields = Fields(schema_of(type_.struct), version, flexible=flexible)
        return _NullableStruct(fields) if nullable else fields
    is_string = type_.name == "String"
    plain = construct.Int16sb if is_string else construct.Int32sb
    return Sized(Length(plain, compact=compact, nullable=nullable), is_string=is_string)


# --- parse, build, dissect ----------------------------------------------------------------------------------------


_constructs: dict[tuple[type[Any], int], Fields] = {}


def message_construct(cls: type[Any], version: int) -> Fields:
    """The construct object of a message in one version; kept, since making it takes longer than using it."""
    found = _constructs.get((cls, version))
    if found is None:
        schema = schema_of(cls)
        found = _constructs[cls, version] = Fields(schema, version, flexible=version in schema.flexible)
    return found


def parse(cls: type[T], data: Buffer, version: int, *, exact: bool = False) -> T:
    """As `compile.decode`, slowly. Raises DecodeError."""
    node, message = _run(cls, bytes(data), version, 0)
    if node.error is not None or (exact and node.end != len(data)):
        raise DecodeError(node.error or "bytes after the end", api=cls.__name__, version=version, offset=node.end)
    return message  # type: ignore[no-any-return]


def build(message: object, version: int) -> bytes:
    """As `compile.encode`, slowly. Raises EncodeError."""
    out = io.BytesIO()
    try:
        message_construct(type(message), version)._build(message, out, construct.Container(), "")
    except (construct.ConstructError, AttributeError, TypeError, ValueError) as error:
        raise EncodeError(f"{type(message).__name__} v{version}: {error}") from None
    return out.getvalue()


def _run(cls: type[Any], data: bytes, version: int, offset: int) -> tuple[Node, Any]:
    """The tree of the message at `offset`, and the message (None when the tree has an error)."""
    root = Node(f"{cls.__name__} v{version}", "message", start=offset, end=offset)
    stream = io.BytesIO(data)
    stream.seek(offset)
    context = construct.Container(parent=root)
    message = None
    try:
        message = message_construct(cls, version)._parsereport(stream, context, "")
    except construct.ConstructError as error:
        root.error = " ".join(str(error).split())
    root.end = stream.tell()
    return root, message


def dissect_message(cls: type[Any], data: Buffer, version: int, *, offset: int = 0) -> Node:
    """The message as a tree; records inside it are taken apart as batches. Never raises for bad bytes, see `error`."""
    node, _ = _run(cls, bytes(data), version, offset)
    _open_records(node)
    return node


def _open_records(node: Node) -> None:
    from kmirror.protocol.dissect_batch import dissect_batches

    if node.kind.endswith("records") and node.value:
        base = node.end - len(node.value)
        node.children = dissect_batches(node.value, shift=base)
    for child in node.children:
        _open_records(child)


def dissect_frame(data: Buffer, *, response_to: tuple[str, int] | None = None) -> Node:
    """A whole frame, with or without its four-byte size, as a tree.

    A request says itself what it is; of a response one must know the request: `response_to=("Fetch", 12)`.
    Raises KeyError for an API that has no schema; bad bytes end in `Node.error`.
    """
    frame = bytes(data)
    root = Node("frame", "frame", end=len(frame))
    offset = 0
    if len(frame) >= 4 and int.from_bytes(frame[:4], "big") == len(frame) - 4:
        root.children.append(Node("size", "int32", 0, 4, len(frame) - 4))
        offset = 4
    if response_to is None:
        api, version = _requested(frame, offset)
        header = dissect_message(
            headers.RequestHeader, frame, registry.request_header_version(api, version), offset=offset
        )
        cls = api.request
    else:
        api, version = registry.by_name[response_to[0]], response_to[1]
        header_version = registry.response_header_version(api, version)
        header = dissect_message(headers.ResponseHeader, frame, header_version, offset=offset)
        cls = api.response
    root.children.append(header)
    if header.error is not None:
        return root
    body = dissect_message(cls, frame, version, offset=header.end)
    root.children.append(body)
    if body.error is None and body.end < len(frame):
        rest = frame[body.end :]
        root.children.append(Node("bytes after the message", "bytes", body.end, len(frame), rest))
    return root


def _requested(frame: bytes, offset: int) -> tuple[registry.Api, int]:
    key = int.from_bytes(frame[offset : offset + 2], "big", signed=True)
    version = int.from_bytes(frame[offset + 2 : offset + 4], "big", signed=True)
    if key not in registry.by_key:
        raise KeyError(f"no schema for API key {key}")
    api = registry.by_key[key]
    if not api.min_version <= version <= api.max_version:
        raise KeyError(f"no schema for {api.name} v{version}, only {api.min_version}-{api.max_version}")
    return api, version
