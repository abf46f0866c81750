"""Java's String.hashCode: which partition of an internal topic a key belongs to is part of Kafka's format. L1."""

from __future__ import annotations


def java_hash(text: str) -> int:
    """String.hashCode: 31-polynomial over UTF-16 code units, as a signed int32."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for i in range(0, len(units), 2):
        value = (31 * value + (units[i] << 8 | units[i + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def partition_for(text: str, partition_count: int) -> int:
    """Where `__consumer_offsets` keeps a group, `__transaction_state` a transactional id, `__mirror_state` a partition:
    the absolute hash (Integer.MIN_VALUE counts as 0) modulo the number of partitions (Utils.abs)."""
    value = java_hash(text)
    return (0 if value == -(1 << 31) else abs(value)) % partition_count
