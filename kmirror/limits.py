"""Every bound of the system, named, with its reason. L0: imports nothing of kmirror.

A number that limits how much, how many or how long something may be stands here and nowhere else. Values that Kafka
makes configurable are configuration (`kmirror.broker.config`), not limits.
"""

from __future__ import annotations

# --- protocol ---------------------------------------------------------------------------------------------------
MAX_VARINT_BYTES = 5
"""An unsigned varint of 32 bits never needs more; a longer one is rubbish (Kafka: ByteUtils.readUnsignedVarint)."""
MAX_VARLONG_BYTES = 10
MAX_DECOMPRESSED_BYTES = 256 * 1024 * 1024
"""Cap on what one compressed batch may expand to: a 1 MB zip bomb must not take the process with it."""
MAX_CLIENT_ID_BYTES = 32_767
"""The header's client id has an int16 length."""
