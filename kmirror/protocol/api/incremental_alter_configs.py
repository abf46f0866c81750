"""IncrementalAlterConfigs, API key 44."""

from __future__ import annotations

from kmirror.protocol.schema import Bool, Int8, Int16, Int32, String, field, request, response, struct


@request(key=44, versions="0-1", flexible="1+")
class IncrementalAlterConfigsRequest:
    """Change single overrides of a resource."""

    resources: list[IncrementalAlterConfigsResource] = field()
    validate_only: Bool = False


@struct
class IncrementalAlterConfigsResource:
    resource_type: Int8 = 0
    resource_name: String = ""
    configs: list[IncrementalAlterableConfig] = field()


@struct
class IncrementalAlterableConfig:
    name: String = ""
    # 0 set, 1 delete, 2 append to a list, 3 subtract from a list
    config_operation: Int8 = 0
    value: String | None = ""


@response(key=44, versions="0-1", flexible="1+")
class IncrementalAlterConfigsResponse:
    """One result per resource."""

    throttle_time_ms: Int32 = 0
    responses: list[IncrementalAlterConfigsResourceResponse] = field()


@struct
class IncrementalAlterConfigsResourceResponse:
    error_code: Int16 = 0
    error_message: String | None = ""
    resource_type: Int8 = 0
    resource_name: String = ""
