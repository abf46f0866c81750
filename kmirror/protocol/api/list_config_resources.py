"""ListConfigResources, API key 74."""

from __future__ import annotations

from kmirror.protocol.schema import Int8, Int16, Int32, String, field, request, response, struct


@request(key=74, versions="0-1", flexible="0+")
class ListConfigResourcesRequest:
    """List the names of resources that can have a configuration. v0 lists client metrics only."""

    # empty: all
    resource_types: list[Int8] = field(versions="1+")


@response(key=74, versions="0-1", flexible="0+")
class ListConfigResourcesResponse:
    """The resources."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    config_resources: list[ConfigResource] = field()


@struct
class ConfigResource:
    resource_name: String = ""
    resource_type: Int8 = field(versions="1+", ignorable=True, default=16)
