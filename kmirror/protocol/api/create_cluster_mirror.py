"""CreateClusterMirror, API key in `mirror_numbers` (KIP-1279)."""

from __future__ import annotations

from kmirror.protocol import mirror_numbers
from kmirror.protocol.schema import Int16, Int32, String, field, request, response, struct


@request(key=mirror_numbers.CREATE_CLUSTER_MIRROR, versions="0", flexible="0+")
class CreateClusterMirrorRequest:
    """Create a mirror: a named connection to a source cluster."""

    mirror_name: String = ""
    configs: list[ClusterMirrorConfig] = field()


@struct
class ClusterMirrorConfig:
    name: String = ""
    value: String | None = None


@response(key=mirror_numbers.CREATE_CLUSTER_MIRROR, versions="0", flexible="0+")
class CreateClusterMirrorResponse:
    """The result."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
