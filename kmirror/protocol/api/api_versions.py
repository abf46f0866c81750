"""ApiVersions, API key 18."""

from __future__ import annotations

from kmirror.protocol.schema import Bool, Int16, Int32, Int64, String, field, request, response, struct


@request(key=18, versions="0-5", flexible="3+")
class ApiVersionsRequest:
    """The first request of a connection. A broker that lacks the version answers in v0 with error 35 (KIP-511)."""

    client_software_name: String = field(versions="3+", ignorable=True)
    client_software_version: String = field(versions="3+", ignorable=True)
    # which cluster the client expects here; sent together with `node_id`
    cluster_id: String | None = field(versions="5+", ignorable=True, default=None)
    node_id: Int32 = field(versions="5+", ignorable=True, default=-1)


@response(key=18, versions="0-5", flexible="3+")
class ApiVersionsResponse:
    """What the broker speaks. Its header is v0 in every version, so that anybody can read it."""

    error_code: Int16 = 0
    api_keys: list[ApiVersion] = field()
    throttle_time_ms: Int32 = field(versions="1+", ignorable=True)
    # levels this broker could work at; up to v3 without those that begin at 0
    supported_features: list[SupportedFeatureKey] = field(versions="3+", tag=0, ignorable=True)
    # -1: unknown
    finalized_features_epoch: Int64 = field(versions="3+", tag=1, ignorable=True, default=-1)
    # levels the cluster works at
    finalized_features: list[FinalizedFeatureKey] = field(versions="3+", tag=2, ignorable=True)
    zk_migration_ready: Bool = field(versions="3+", tag=3, ignorable=True)


@struct
class ApiVersion:
    api_key: Int16 = 0
    min_version: Int16 = 0
    max_version: Int16 = 0


@struct
class SupportedFeatureKey:
    name: String = field(versions="3+")
    min_version: Int16 = field(versions="3+")
    max_version: Int16 = field(versions="3+")


@struct
class FinalizedFeatureKey:
    name: String = field(versions="3+")
    max_version_level: Int16 = field(versions="3+")
    min_version_level: Int16 = field(versions="3+")
