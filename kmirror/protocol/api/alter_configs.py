"""AlterConfigs, API key 33."""

from __future__ import annotations

from kmirror.protocol.schema import Bool, Int8, Int16, Int32, String, field, request, response, struct


@request(key=33, versions="0-2", flexible="2+")
class AlterConfigsRequest:
    """Replace all overrides of a resource; kept for old clients, see IncrementalAlterConfigs."""

    resources: list[AlterConfigsResource] = field()
    validate_only: Bool = False


@struct
class AlterConfigsResource:
    resource_type: Int8 = 0
    resource_name: String = ""
    configs: list[AlterableConfig] = field()


@struct
class AlterableConfig:
    name: String = ""
    value: String | None = ""


@response(key=33, versions="0-2", flexible="2+")
class AlterConfigsResponse:
    """One result per resource."""

    throttle_time_ms: Int32 = 0
    responses: list[AlterConfigsResourceResponse] = field()


@struct
class AlterConfigsResourceResponse:
    error_code: Int16 = 0
    error_message: String | None = ""
    resource_type: Int8 = 0
    resource_name: String = ""
