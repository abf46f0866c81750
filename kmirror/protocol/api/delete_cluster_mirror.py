"""DeleteClusterMirror, API key in `mirror_numbers` (KIP-1279)."""

from __future__ import annotations

from kmirror.protocol import mirror_numbers
from kmirror.protocol.schema import Int16, Int32, Int64, String, request, response


@request(key=mirror_numbers.DELETE_CLUSTER_MIRROR, versions="0", flexible="0+")
class DeleteClusterMirrorRequest:
    """Delete a mirror that has no active or paused topics."""

    mirror_name: String = ""
    state_offset: Int64 = -1


@response(key=mirror_numbers.DELETE_CLUSTER_MIRROR, versions="0", flexible="0+")
class DeleteClusterMirrorResponse:
    """The result."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
