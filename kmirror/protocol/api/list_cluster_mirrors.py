"""ListClusterMirrors, API key in `mirror_numbers` (KIP-1279)."""

from __future__ import annotations

from kmirror.protocol import mirror_numbers
from kmirror.protocol.schema import Bool, Int16, Int32, String, field, request, response, struct


@request(key=mirror_numbers.LIST_CLUSTER_MIRRORS, versions="0", flexible="0+")
class ListClusterMirrorsRequest:
    """List mirrors. Null means no filter."""

    include_topic_names: Bool = False
    mirror_name_filter: list[String] | None = None
    source_cluster_id_filter: list[String] | None = None
    # names of states, such as MIRRORING
    desired_state_filter: list[String] | None = None


@response(key=mirror_numbers.LIST_CLUSTER_MIRRORS, versions="0", flexible="0+")
class ListClusterMirrorsResponse:
    """The mirrors that pass the filters."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    mirrors: list[ListedMirror] = field()


@struct
class ListedMirror:
    mirror_name: String = ""
    source_bootstrap: String = ""
    source_cluster_id: String = ""
    topic_count: Int32 = 0
    topic_names: list[String] | None = None
