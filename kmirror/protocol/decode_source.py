"""Writes the Python source of a decoder: one straight-line function per (message, version).

Nested structs are written in line, loops are the only control flow besides null, tags and errors. Adjacent fields of
fixed size, and the first byte of the length that follows them, become one `struct` call. The function relies on
`data` ending where the frame ends: `struct` and indexing then check themselves, and every slice is preceded by a
comparison with `end`, because slicing would silently give less.

Names in the generated code: `data`, `o` (offset), `end`, `n` (length or count just read), `e` (end of the value),
`m0`, `m1` … (message and structs by depth), `i0` … (loop index), `x0` … (end of a tagged field).
L1: imports schema and wire.
"""

from __future__ import annotations

from typing import Any

from kmirror.protocol import uuids, wire
from kmirror.protocol.schema import STRUCT, Field, Schema, Type, schema_of

Spans = tuple[tuple[int, str], ...]
"""Which fields a line reads: (size in bytes, path), in order."""

RUNTIME = ("Malformed", "uvarint_rest", "read_uvarint", "skip_tags", "uuid_list", "bad_length", "bad_count")


def default_expression(field: Field, scope: dict[str, Any]) -> str:
    """Source of a fresh default value. A struct class goes into `scope`."""
    if field.default is None:
        return "None"
    if field.type.is_array:
        return "[]"
    if field.type.name == STRUCT:
        return f"{class_name(field.type, scope)}()"
    return "ZERO" if field.default == uuids.ZERO else repr(field.default)


def class_name(type_: Type, scope: dict[str, Any]) -> str:
    assert type_.struct is not None
    scope[f"C_{type_.struct.__name__}"] = type_.struct
    return f"C_{type_.struct.__name__}"


def holds_buffers(schema: Schema) -> bool:
    """Whether any field, at any depth, is a byte string or records."""
    return any(
        field.type.name in ("Bytes", "Records")
        or (field.type.struct is not None and holds_buffers(schema_of(field.type.struct)))
        for field in schema.fields
    )


class DecodeSource:
    """`text` after construction; `scope` are the globals it needs, `spans` says what each line reads (for errors)."""

    def __init__(self, schema: Schema, version: int) -> None:
        self.version = version
        self.flexible = version in schema.flexible
        self.lines: list[str] = []
        self.spans: dict[int, Spans] = {}
        self.scope: dict[str, Any] = {"new": object.__new__, "ZERO": uuids.ZERO, "bad_tag_size": wire.bad_tag_size}
        self.scope |= {name: getattr(wire, name) for name in RUNTIME}
        self._indent = 0
        self._depth = 0
        self._loops: list[str] = []
        self._pending: list[tuple[str, int, str, str]] = []
        self._write(schema)
        self.text = "\n".join(self.lines) + "\n"

    # --- lines ------------------------------------------------------------------------------------------------

    def _emit(self, line: str, *spans: tuple[int, str]) -> None:
        self.lines.append("    " * self._indent + line)
        if spans:
            self.spans[len(self.lines)] = spans

    def _fixed(self, code: str, size_bytes: int, target: str, path: str) -> None:
        self._pending.append((code, size_bytes, target, path))

    def _flush(self) -> None:
        """Write the run of fixed-size reads collected so far."""
        pending, self._pending = self._pending, []
        if not pending:
            return
        codes = "".join(code for code, *_ in pending)
        spans = [(size_bytes, path) for _, size_bytes, _, path in pending]
        if codes == "B":
            self._emit(f"{pending[0][2]} = data[o]", *spans)
        else:
            name = "u_" + codes.replace("?", "t").replace("16s", "U")
            self.scope[name] = wire.unpacker(codes)
            targets = ", ".join(target for _, _, target, _ in pending)
            self._emit(f"{targets}{',' if len(pending) == 1 else ''} = {name}(data, o)", *spans)
        self._emit(f"o += {sum(size_bytes for size_bytes, _ in spans)}")

    def _write(self, schema: Schema) -> None:
        self._emit("def decode(data, o, end):")
        self._indent = 1
        self._emit("try:")
        self._indent = 2
        self._emit("if end != len(data):")
        self._emit("    data = memoryview(data)[:end]")
        self._emit("    end = len(data)")
        if holds_buffers(schema):
            self._emit("view = memoryview(data)")
        self.scope["C_root"] = schema.cls
        self._emit("m0 = new(C_root)")
        self._struct(schema, "m0", "")
        self._flush()
        self._emit("return m0, o")
        self._indent = 1
        self._emit("except ERRORS as error:")
        self._emit("    raise explain(error, locals()) from None")

    # --- structs and fields -----------------------------------------------------------------------------------

    def _struct(self, schema: Schema, variable: str, path: str) -> None:
        tagged: list[Field] = []
        for field in schema.fields:
            target = f"{variable}.{field.name}"
            if self.version in field.versions and self.version not in field.tagged:
                self._field(field, target, f"{path}{field.name}")
                continue
            self._emit(f"{target} = {default_expression(field, self.scope)}")
            if self.version in field.versions:
                tagged.append(field)
        if self.flexible:
            self._tags(sorted(tagged, key=lambda field: field.tag or 0), variable, path)

    def _field(self, field: Field, target: str, path: str) -> None:
        nullable = self.version in field.nullable
        compact = self.flexible and (field.flexible is None or self.version in field.flexible)
        if field.type.is_array:
            self._array(field.type, target, path, nullable=nullable, compact=compact)
        else:
            self._value(field.type, target, path, nullable=nullable, compact=compact)

    def _value(self, type_: Type, target: str, path: str, *, nullable: bool, compact: bool) -> None:
        if type_.name in wire.FORMATS:
            self._fixed(*wire.FORMATS[type_.name], target, path)
        elif type_.name == STRUCT:
            self._nested(type_, target, path, nullable=nullable)
        elif type_.name == "String":
            limit = " or n > 32768" if compact else ""
            value = 'str(data[o:e], "utf-8", "replace")'
            self._sized(target, path, value, code="h", limit=limit, nullable=nullable, compact=compact)
        else:
            self._sized(target, path, "view[o:e]", code="i", limit="", nullable=nullable, compact=compact)

    def _nested(self, type_: Type, target: str, path: str, *, nullable: bool) -> None:
        assert type_.struct is not None
        self._depth += 1
        if nullable:
            self._fixed("b", 1, "n", path)
            self._flush()
            self._emit("if n < 0:")
            self._emit(f"    {target} = None")
            self._emit("else:")
            self._indent += 1
        variable = f"m{self._depth}"
        self._emit(f"{target} = {variable} = new({class_name(type_, self.scope)})")
        self._struct(schema_of(type_.struct), variable, path + ".")
        if nullable:
            self._flush()
            self._indent -= 1
        self._depth -= 1

    def _sized(
        self, target: str, path: str, value: str, *, code: str, limit: str, nullable: bool, compact: bool
    ) -> None:
        """A string or byte string: length, checks, slice."""
        self._length(path, code=code, compact=compact)
        null, size = ("n == 0", "n - 1") if compact else ("n == -1", "n")
        if nullable:
            self._emit(f"if {null}:")
            self._emit(f"    {target} = None")
            self._emit("else:")
            self._indent += 1
        self._emit(f"e = o + {size}")
        self._emit(f"if not o <= e <= end{limit}:")
        self._emit(f"    bad_length({size}, end - o)", (0, path))
        self._emit(f"{target} = {value}", (0, path))
        self._emit("o = e")
        if nullable:
            self._indent -= 1

    def _length(self, path: str, *, code: str, compact: bool) -> None:
        """Read a length or count into `n`; a compact one stays one too high, zero means null."""
        if compact:
            self._fixed("B", 1, "n", path)
            self._flush()
            self._emit("if n > 127:")
            self._emit("    n, o = uvarint_rest(data, o, n)", (0, path))
        else:
            self._fixed(code, 2 if code == "h" else 4, "n", path)
            self._flush()

    def _array(self, type_: Type, target: str, path: str, *, nullable: bool, compact: bool) -> None:
        self._length(path, code="i", compact=compact)
        if compact:
            self._emit("n -= 1")
        if nullable:
            self._emit("if n == -1:")
            self._emit(f"    {target} = None")
            self._emit("else:")
            self._indent += 1
        if type_.name in wire.FORMATS:
            self._fixed_array(type_, target, path)
        else:
            self._element_loop(type_, target, path, compact=compact)
        if nullable:
            self._indent -= 1

    def _fixed_array(self, type_: Type, target: str, path: str) -> None:
        code, size_bytes = wire.FORMATS[type_.name]
        self._emit(f"e = o + n * {size_bytes}")
        self._emit("if not o <= e <= end:")
        self._emit("    bad_count(n, end - o)", (0, path))
        if type_.name == "Uuid":
            self._emit(f"{target} = uuid_list(data, o, e)")
        else:
            self._emit(f'{target} = list(unpack_from(f">{{n}}{code}", data, o))')
        self._emit("o = e")

    def _element_loop(self, type_: Type, target: str, path: str, *, compact: bool) -> None:
        level = len(self._loops)
        self._emit("if not 0 <= n <= end - o:")
        self._emit("    bad_count(n, end - o)", (0, path))
        self._emit(f"{target} = l{level} = []")
        self._emit(f"for i{level} in range(n):")
        self._indent += 1
        self._loops.append(f"i{level}")
        element_path = f"{path}[{{i{level}}}]"
        if type_.struct is not None:
            self._depth += 1
            variable = f"m{self._depth}"
            self._emit(f"{variable} = new({class_name(type_, self.scope)})")
            self._emit(f"l{level}.append({variable})")
            self._struct(schema_of(type_.struct), variable, element_path + ".")
            self._depth -= 1
        else:
            self._value(type_, "v", element_path, nullable=False, compact=compact)
            self._emit(f"l{level}.append(v)")
        self._flush()
        self._loops.pop()
        self._indent -= 1

    # --- tagged fields ----------------------------------------------------------------------------------------

    def _tags(self, known: list[Field], variable: str, path: str) -> None:
        self._fixed("B", 1, "n", f"{path}<tags>")
        self._flush()
        self._emit("if n:")
        self._indent += 1
        span = (0, f"{path}<tags>")
        if not known:
            self._emit("o = skip_tags(data, o, end, n)", span)
            self._indent -= 1
            return
        level = len(self._loops)
        self._loops.append(f"i{level}")
        self._emit("if n > 127:")
        self._emit("    n, o = uvarint_rest(data, o, n)", span)
        self._emit(f"for i{level} in range(n):")
        self._indent += 1
        self._emit("tag, o = read_uvarint(data, o)", span)
        self._emit("n, o = read_uvarint(data, o)", span)
        self._emit(f"x{level} = o + n")
        self._emit(f"if x{level} > end:")
        self._emit("    bad_length(n, end - o)", span)
        for index, field in enumerate(known):
            self._emit(f"{'elif' if index else 'if'} tag == {field.tag}:")
            self._indent += 1
            self._field(field, f"{variable}.{field.name}", f"{path}{field.name}")
            self._flush()
            self._emit(f"if o != x{level}:")
            self._emit(f"    bad_tag_size({field.tag}, o - x{level})", (0, f"{path}{field.name}"))
            self._indent -= 1
        self._emit("else:")
        self._emit(f"    o = x{level}")
        self._loops.pop()
        self._indent -= 2
