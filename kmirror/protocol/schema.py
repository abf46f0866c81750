"""The schema language: a typed class *is* the description of a message, for all of its versions.

    @request(key=1, versions="4-18", flexible="12+")
    class FetchRequest:
        replica_id: Int32 = field(versions="0-14", default=-1)
        max_wait_ms: Int32 = 0
        topics: list[FetchTopic] = field()

What may live here: the wire types, the decorators, and the parsed form (`Schema`, `Field`) that both backends read
(`compile` for speed, `dissect` for people). No bytes are touched here.

Why not dataclasses: one costs about a millisecond at import, and a message has up to a dozen structs. The decorators
make a slotted class with a keyword-only `__init__` and nothing else; everything that can wait (parsing of versions,
resolving of struct names) waits for `schema_of`. Type checkers see a dataclass, through `dataclass_transform`; every
field has a default, Kafka's own where the message definition names one, else the type's zero.

Must hold: annotations are strings (`from __future__ import annotations`) in the small grammar of `_parse_annotation`;
field order is wire order; a field's absence from a version, its nullability and its tag are all part of the field.
L1: imports nothing of kmirror but uuids and slices.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, TypeVar, dataclass_transform

from kmirror.protocol import uuids
from kmirror.slices import FileSlice

T = TypeVar("T")

# --- wire types, as they are written in annotations ---------------------------------------------------------------
Int8: TypeAlias = int
Int16: TypeAlias = int
Int32: TypeAlias = int
Int64: TypeAlias = int
Uint16: TypeAlias = int
Uint32: TypeAlias = int
Float64: TypeAlias = float
Bool: TypeAlias = bool
String: TypeAlias = str
Uuid: TypeAlias = bytes
"""16 raw bytes; see `kmirror.protocol.uuids`."""
Bytes: TypeAlias = bytes | memoryview
"""Decoding hands out a view of the frame: copy it to keep it longer than the frame."""
Records: TypeAlias = bytes | memoryview
"""Record batches, never copied."""
Piece: TypeAlias = bytes | memoryview | FileSlice
RecordPieces: TypeAlias = bytes | memoryview | list[Piece]
"""Record batches of an answer: one buffer, or pieces sent one after the other. Decoding gives a memoryview. The same
wire type as `Records`."""

_ZEROS: dict[str, Any] = {
    "Int8": 0,
    "Int16": 0,
    "Int32": 0,
    "Int64": 0,
    "Uint16": 0,
    "Uint32": 0,
    "Float64": 0.0,
    "Bool": False,
    "String": "",
    "Uuid": uuids.ZERO,
    "Bytes": b"",
    "Records": b"",
    "RecordPieces": b"",
}
STRUCT = "Struct"
"""`Type.name` of a nested struct; every other name is a key of the table above."""


class SchemaError(TypeError):
    """A message class is not a valid schema: a mistake in this package, found at first use."""


class Versions(NamedTuple):
    """An inclusive range. `NEVER` contains nothing."""

    low: int
    high: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.low <= version <= self.high

    def __str__(self) -> str:
        if self.high < self.low:
            return "none"
        if self.high == OPEN_END:
            return f"{self.low}+"
        return str(self.low) if self.low == self.high else f"{self.low}-{self.high}"


OPEN_END = 32_767
NEVER = Versions(0, -1)
ALWAYS = Versions(0, OPEN_END)


def parse_versions(text: str) -> Versions:
    """`"3"`, `"3+"`, `"3-7"` or `"none"`, as in Kafka's message definitions."""
    if text == "none":
        return NEVER
    if text.endswith("+"):
        return Versions(int(text[:-1]), OPEN_END)
    low, _, high = text.partition("-")
    return Versions(int(low), int(high or low))


class Type(NamedTuple):
    """`name` is one of the wire types or `STRUCT`; then `struct` is the class. `is_array` wraps either."""

    name: str
    struct: type[Any] | None
    is_array: bool


class Field(NamedTuple):
    """One field of a message, for all versions."""

    name: str
    type: Type
    versions: Versions
    nullable: Versions
    tag: int | None
    tagged: Versions
    default: Any
    """The default itself, None included; `[]` for arrays; the struct class for a struct that is not null."""
    ignorable: bool
    flexible: Versions | None
    """Overrides whether lengths are compact; only the client id of the request header needs it."""


class Schema(NamedTuple):
    """The parsed form of one class. `kind` is request, response, data or struct."""

    cls: type[Any]
    kind: str
    key: int | None
    versions: Versions
    flexible: Versions
    fields: tuple[Field, ...]


class _FieldSpec(NamedTuple):
    versions: str
    nullable: str | None
    tag: int | None
    tagged: str | None
    default: Any
    ignorable: bool
    flexible: str | None


_UNSET: Any = object()


def field(
    *,
    versions: str = "0+",
    nullable: str | None = None,
    tag: int | None = None,
    tagged: str | None = None,
    default: Any = _UNSET,
    ignorable: bool = False,
    flexible: str | None = None,
) -> Any:
    """Say more about a field than its type.

    `versions`: where it exists. `nullable`: where null is allowed, all versions when the annotation says `| None`.
    `tag`, `tagged`: its tag and the versions in which it is tagged (default: all). `default`: the type's zero if not
    given; None must be said. `ignorable`: may be left out silently in a version that lacks it; otherwise a value other
    than the default is an EncodeError there.
    """
    return _FieldSpec(versions, nullable, tag, tagged, default, ignorable, flexible)


class Message:
    """Base of all messages and structs at run time: equality by fields, a readable repr."""

    __slots__: tuple[str, ...] = ()
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={_brief(getattr(self, name, '<unset>'))}" for name in self.__slots__)
        return f"{type(self).__name__}({values})"


def _brief(value: Any) -> str:
    if isinstance(value, bytes | memoryview) and len(value) > 32:
        return f"<{len(value)} bytes>"
    return repr(bytes(value) if isinstance(value, memoryview) else value)


class _Declaration:
    """What a decorator was told; turned into a `Schema` by the first `schema_of`."""

    __slots__ = ("flexible", "key", "kind", "schema", "specs", "versions")

    def __init__(
        self, kind: str, key: int | None, versions: str, flexible: str, specs: dict[str, tuple[str, _FieldSpec]]
    ) -> None:
        self.kind = kind
        self.key = key
        self.versions = versions
        self.flexible = flexible
        self.specs = specs
        self.schema: Schema | None = None


@dataclass_transform(kw_only_default=True)
def request(*, key: int, versions: str, flexible: str) -> Callable[[type[T]], type[T]]:
    """A request. `versions` is the schema range; what a server offers is another matter."""
    return lambda cls: _build(cls, "request", key, versions, flexible)


@dataclass_transform(kw_only_default=True)
def response(*, key: int, versions: str, flexible: str) -> Callable[[type[T]], type[T]]:
    """The answer to the request of the same key; the ranges are equal (a test compares them)."""
    return lambda cls: _build(cls, "response", key, versions, flexible)


@dataclass_transform(kw_only_default=True)
def data(*, versions: str, flexible: str, key: int | None = None) -> Callable[[type[T]], type[T]]:
    """A message outside requests: a metadata record (`key` is its record type), a key or value of an internal topic."""
    return lambda cls: _build(cls, "data", key, versions, flexible)


@dataclass_transform(kw_only_default=True)
def struct(cls: type[T]) -> type[T]:
    """A part of a message. Its versions and flexibility are those of the message that contains it."""
    return _build(cls, "struct", None, "0+", "none")


def _build(cls: type[T], kind: str, key: int | None, versions: str, flexible: str) -> type[T]:
    """The slotted class in place of `cls`, with an `__init__` that sets every field."""
    specs: dict[str, tuple[str, _FieldSpec]] = {}
    namespace = dict(cls.__dict__)
    for name, annotation in cls.__annotations__.items():
        if not isinstance(annotation, str):
            raise SchemaError(f"{cls.__name__}.{name}: the module needs `from __future__ import annotations`")
        value = namespace.pop(name, _UNSET)
        if value is _UNSET:
            raise SchemaError(f"{cls.__name__}.{name} has neither a default nor `field()`")
        if not isinstance(value, _FieldSpec):
            value = _FieldSpec("0+", None, None, None, value, False, None)
        specs[name] = annotation, value
    for name in ("__dict__", "__weakref__"):
        namespace.pop(name, None)
    namespace["__slots__"] = tuple(specs)
    namespace["__init__"] = _lazy_init(cls, specs)
    namespace["__declaration__"] = _Declaration(kind, key, versions, flexible, specs)
    built: Any = type(cls.__name__, (Message,), namespace)
    return built  # type: ignore[no-any-return]


def _lazy_init(cls: type[Any], specs: dict[str, tuple[str, _FieldSpec]]) -> Callable[..., None]:
    """An `__init__` that replaces itself by a generated one when it is first called: importing costs nothing."""

    def init(self: Any, **values: Any) -> None:
        type(self).__init__ = generated = _make_init(cls, specs)
        generated(self, **values)

    return init


def _make_init(cls: type[Any], specs: dict[str, tuple[str, _FieldSpec]]) -> Callable[..., None]:
    """A keyword-only `__init__`; a mutable default (array, struct) is made anew for each message."""
    scope: dict[str, Any] = {"UNSET": _UNSET, "module": sys.modules[cls.__module__].__dict__}
    parameters, body = [], []
    for name, (annotation, spec) in specs.items():
        base = annotation.removesuffix(" | None")
        if spec.default is not _UNSET or base in _ZEROS:
            scope[f"d_{name}"] = _ZEROS[base] if spec.default is _UNSET else spec.default
            parameters.append(f"{name}=d_{name}")
            body.append(f" self.{name} = {name}")
        else:
            fresh = "[]" if base.startswith("list[") else f"module['{base}']()"
            parameters.append(f"{name}=UNSET")
            body.append(f" self.{name} = {fresh} if {name} is UNSET else {name}")
    star = "*, " if parameters else ""
    exec(f"def __init__(self, {star}{', '.join(parameters)}):\n" + ("\n".join(body) or " pass"), scope)
    init: Callable[..., None] = scope["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    return init


def schema_of(cls: type[Any]) -> Schema:
    """The parsed schema of a decorated class. Raises SchemaError when it is not one or contradicts itself."""
    declaration = cls.__dict__.get("__declaration__")
    if not isinstance(declaration, _Declaration):
        raise SchemaError(f"{cls.__name__} is not a message class")
    if declaration.schema is None:
        fields = tuple(_make_field(cls, name, *declared) for name, declared in declaration.specs.items())
        _check_tags(cls, fields)
        declaration.schema = Schema(
            cls,
            declaration.kind,
            declaration.key,
            parse_versions(declaration.versions),
            parse_versions(declaration.flexible),
            fields,
        )
    return declaration.schema


def _make_field(cls: type[Any], name: str, annotation: str, spec: _FieldSpec) -> Field:
    kind, may_be_null = _parse_annotation(cls, name, annotation)
    versions = parse_versions(spec.versions)
    nullable = versions if may_be_null else NEVER
    if spec.nullable is not None:
        if not may_be_null:
            raise SchemaError(f"{cls.__name__}.{name}: `nullable` needs `| None` in the annotation")
        nullable = parse_versions(spec.nullable)
    tagged = NEVER
    if spec.tag is not None:
        tagged = versions if spec.tagged is None else parse_versions(spec.tagged)
    default = spec.default
    if default is _UNSET:
        default = [] if kind.is_array else kind.struct if kind.name == STRUCT else _ZEROS[kind.name]
    if default is None and not may_be_null:
        raise SchemaError(f"{cls.__name__}.{name}: default None needs `| None` in the annotation")
    if kind.name == STRUCT and not kind.is_array and spec.tag is not None and may_be_null:
        raise SchemaError(f"{cls.__name__}.{name}: Kafka has no nullable tagged struct")
    if kind.name == "Records" and (kind.is_array or spec.tag is not None):
        raise SchemaError(f"{cls.__name__}.{name}: Kafka has no arrays of records and no tagged ones")
    flexible = None if spec.flexible is None else parse_versions(spec.flexible)
    return Field(name, kind, versions, nullable, spec.tag, tagged, default, spec.ignorable, flexible)


def _parse_annotation(cls: type[Any], name: str, annotation: str) -> tuple[Type, bool]:
    """`X`, `list[X]`, each with or without ` | None`; X a wire type or a struct of the same module."""
    base = annotation.removesuffix(" | None")
    is_array = base.startswith("list[") and base.endswith("]")
    inner = base[5:-1] if is_array else base
    if inner in _ZEROS:
        return Type("Records" if inner == "RecordPieces" else inner, None, is_array), base != annotation
    struct_class = sys.modules[cls.__module__].__dict__.get(inner)
    if not isinstance(struct_class, type) or not isinstance(struct_class.__dict__.get("__declaration__"), _Declaration):
        raise SchemaError(f"{cls.__name__}.{name}: {annotation!r} is neither a wire type nor a struct of this module")
    return Type(STRUCT, struct_class, is_array), base != annotation


def _check_tags(cls: type[Any], fields: tuple[Field, ...]) -> None:
    tags = sorted(f.tag for f in fields if f.tag is not None)
    if tags != list(range(len(tags))):
        raise SchemaError(f"{cls.__name__}: tags must be 0, 1, 2 … without gaps, they are {tags}")
