"""Writes the Python source of an encoder: one straight-line function per (message, version).

The function appends pieces to a list: runs of fixed-size fields packed by one `struct` call, strings, and the bytes or
`FileSlice`s of records as they are. There is no growing buffer to get the bookkeeping of wrong, and nothing is copied
before the one join (or the one gathering send) at the end.

Names in the generated code: `m0` … (message and structs by depth), `out`, `ap` (append to the list), `n`, `s` (the
string or buffer at hand), `a0` … (arrays), `p0` … (pieces of a tagged field, whose size comes before it).
L1: imports schema and wire.
"""

from __future__ import annotations

from typing import Any

from kmirror.protocol import uuids, wire
from kmirror.protocol.decode_source import Spans
from kmirror.protocol.schema import STRUCT, Field, Schema, Type, schema_of

RUNTIME = ("Malformed", "SMALL", "uvarint", "string_size", "sized", "uuid_array", "absent")


def differs(field: Field, value: str) -> str:
    """Source of a condition: `value` is not the field's default."""
    default = field.default
    if default is None:
        return f"{value} is not None"
    if field.type.is_array:
        return f"{value} != []"
    if field.type.name == STRUCT:
        assert field.type.struct is not None
        return " or ".join(differs(inner, f"{value}.{inner.name}") for inner in schema_of(field.type.struct).fields)
    if field.type.name == "Uuid":
        return f"{value} != ZERO"
    return f"{value} != {default!r}"


class EncodeSource:
    """`text` after construction; `scope` are the globals it needs, `spans` says which field each line writes."""

    def __init__(self, schema: Schema, version: int) -> None:
        self.version = version
        self.flexible = version in schema.flexible
        self.lines: list[str] = []
        self.spans: dict[int, Spans] = {}
        self.scope: dict[str, Any] = {name: getattr(wire, name) for name in RUNTIME}
        self.scope["ZERO"] = uuids.ZERO
        self._indent = 0
        self._depth = 0
        self._arrays = 0
        self._append = ["ap"]
        self._pending: list[tuple[str, str, str]] = []
        self._write(schema)
        self.text = "\n".join(self.lines) + "\n"

    # --- lines ------------------------------------------------------------------------------------------------

    def _emit(self, line: str, path: str = "") -> None:
        self.lines.append("    " * self._indent + line)
        if path:
            self.spans[len(self.lines)] = ((0, path),)

    def _put(self, expression: str, path: str) -> None:
        self._emit(f"{self._append[-1]}({expression})", path)

    def _fixed(self, code: str, value: str, path: str) -> None:
        """`value` is empty for a zero byte (code `x`)."""
        self._pending.append((code, value, path))

    def _flush(self) -> None:
        pending, self._pending = self._pending, []
        if not pending:
            return
        codes = "".join(code for code, _, _ in pending)
        values = [value for _, value, _ in pending if value]
        if not values:
            self._put(repr(bytes(len(pending))), "")
            return
        name = "p_" + codes.replace("?", "t").replace("16s", "U")
        self.scope[name] = wire.packer(codes)
        self._put(f"{name}({', '.join(values)})", ", ".join(path for _, value, path in pending if value))

    def _write(self, schema: Schema) -> None:
        self._emit("def encode(m0, out):")
        self._indent = 1
        self._emit("try:")
        self._indent = 2
        self._emit("ap = out.append")
        self._struct(schema, "m0", "")
        self._flush()
        self._indent = 1
        self._emit("except ERRORS as error:")
        self._emit("    raise explain(error, locals()) from None")

    # --- structs and fields -----------------------------------------------------------------------------------

    def _struct(self, schema: Schema, variable: str, path: str) -> None:
        for field in schema.fields:
            if self.version not in field.versions and not field.ignorable:
                value = f"{variable}.{field.name}"
                self._emit(f"if {differs(field, value)}:")
                self._emit(f"    absent({value}, {self.version})", f"{path}{field.name}")
        for field in schema.fields:
            if self.version in field.versions and self.version not in field.tagged:
                self._field(field, f"{variable}.{field.name}", f"{path}{field.name}")
        if self.flexible:
            tagged = [f for f in schema.fields if self.version in f.versions and self.version in f.tagged]
            self._tags(sorted(tagged, key=lambda field: field.tag or 0), variable, path)

    def _field(self, field: Field, value: str, path: str) -> None:
        nullable = self.version in field.nullable
        compact = self.flexible and (field.flexible is None or self.version in field.flexible)
        if field.type.is_array:
            self._array(field.type, value, path, nullable=nullable, compact=compact)
        else:
            self._value(field.type, value, path, nullable=nullable, compact=compact)

    def _value(self, type_: Type, value: str, path: str, *, nullable: bool, compact: bool) -> None:
        if type_.name == "Uuid":
            self._fixed("16s", f"sized({value})", path)
        elif type_.name in wire.FORMATS:
            self._fixed(wire.FORMATS[type_.name][0], value, path)
        elif type_.name == STRUCT:
            self._nested(type_, value, path, nullable=nullable)
        else:
            self._sized(type_, value, path, nullable=nullable, compact=compact)

    def _nested(self, type_: Type, value: str, path: str, *, nullable: bool) -> None:
        assert type_.struct is not None
        self._depth += 1
        variable = f"m{self._depth}"
        self._emit(f"{variable} = {value}")
        if nullable:
            self._null_branch(variable, r"b'\xff'")
            self._fixed("b", "1", path)
        self._struct(schema_of(type_.struct), variable, path + ".")
        if nullable:
            self._flush()
            self._indent -= 1
        self._depth -= 1

    def _null_branch(self, variable: str, null: str) -> None:
        """`if variable is None` writes null; what follows is the other branch, one level deeper."""
        self._flush()
        self._emit(f"if {variable} is None:")
        self._emit(f"    {self._append[-1]}({null})")
        self._emit("else:")
        self._indent += 1

    def _sized(self, type_: Type, value: str, path: str, *, nullable: bool, compact: bool) -> None:
        """A string, a byte string or records."""
        is_string = type_.name == "String"
        code, null = ("h", r"b'\xff\xff'") if is_string else ("i", r"b'\xff\xff\xff\xff'")
        if nullable:
            self._emit(f"s = {value}")
            self._null_branch("s", r"b'\x00'" if compact else null)
            value = "s"
        if is_string:
            self._emit(f"s = {value}.encode()", path)
        elif value != "s":
            self._emit(f"s = {value}")
        pieces = "sum(map(len, s)) if type(s) is list else len(s)" if type_.name == "Records" else "len(s)"
        self._emit(f"n = {pieces}", path)
        self._length(path, code=code, compact=compact, large="string_size" if is_string else "uvarint")
        if type_.name == "Records":
            self._emit("if type(s) is list:")
            self._emit("    out.extend(s)")
            self._emit("else:")
            self._emit("    ap(s)")
        else:
            self._put("s", "")
        if nullable:
            self._indent -= 1

    def _length(self, path: str, *, code: str, compact: bool, large: str) -> None:
        if compact:
            self._flush()
            self._put(f"SMALL[n + 1] if n < 127 else {large}(n + 1)", path)
        else:
            self._fixed(code, "n", path)
            self._flush()

    def _array(self, type_: Type, value: str, path: str, *, nullable: bool, compact: bool) -> None:
        array = f"a{self._arrays}"
        self._arrays += 1
        self._emit(f"{array} = {value}")
        if nullable:
            self._null_branch(array, r"b'\x00'" if compact else r"b'\xff\xff\xff\xff'")
        self._emit(f"n = len({array})", path)
        self._length(path, code="i", compact=compact, large="uvarint")
        if type_.name == "Uuid":
            self._put(f"uuid_array({array})", path)
        elif type_.name in wire.FORMATS:
            self._put(f'pack(f">{{n}}{wire.FORMATS[type_.name][0]}", *{array})', path)
        else:
            self._element_loop(type_, array, path, compact=compact)
        self._arrays -= 1
        if nullable:
            self._indent -= 1

    def _element_loop(self, type_: Type, array: str, path: str, *, compact: bool) -> None:
        self._depth += 1
        variable = f"m{self._depth}"
        self._emit(f"for {variable} in {array}:")
        self._indent += 1
        if type_.struct is not None:
            self._struct(schema_of(type_.struct), variable, f"{path}[].")
        else:
            self._value(type_, variable, f"{path}[]", nullable=False, compact=compact)
        self._flush()
        self._indent -= 1
        self._depth -= 1

    # --- tagged fields ----------------------------------------------------------------------------------------

    def _tags(self, known: list[Field], variable: str, path: str) -> None:
        if not known:
            self._fixed("x", "", f"{path}<tags>")
            return
        conditions = [differs(field, f"{variable}.{field.name}") for field in known]
        self._flush()
        self._emit(f"if {' or '.join(conditions)}:")
        self._indent += 1
        total = " + ".join(f"(1 if {condition} else 0)" for condition in conditions)
        self._put(f"SMALL[{total}]", "")
        for field, condition in zip(known, conditions, strict=True):
            self._emit(f"if {condition}:")
            self._indent += 1
            self._tag(field, f"{variable}.{field.name}", f"{path}{field.name}")
            self._indent -= 1
        self._indent -= 1
        self._emit("else:")
        self._emit(f"    {self._append[-1]}(b'\\x00')")

    def _tag(self, field: Field, value: str, path: str) -> None:
        """One tagged field: its pieces first, since their size stands before them."""
        level = len(self._append)
        self._emit(f"p{level} = []")
        self._append.append(f"p{level}.append")
        self._field(field, value, path)
        self._flush()
        self._append.pop()
        self._put(f"uvarint({field.tag}) + uvarint(sum(map(len, p{level})))", path)
        self._put(f"b''.join(p{level})", path)
