"""DescribeConfigs, API key 32."""

from __future__ import annotations

from kmirror.protocol.schema import Bool, Int8, Int16, Int32, String, field, request, response, struct


@request(key=32, versions="1-4", flexible="4+")
class DescribeConfigsRequest:
    """Read configurations with their origin."""

    resources: list[DescribeConfigsResource] = field()
    include_synonyms: Bool = False
    include_documentation: Bool = field(versions="3+")


@struct
class DescribeConfigsResource:
    # 2 topic, 4 broker, 8 broker logger, 16 client metrics, 32 group, 64 mirror
    resource_type: Int8 = 0
    resource_name: String = ""
    # null: all
    configuration_keys: list[String] | None = field()


@response(key=32, versions="1-4", flexible="4+")
class DescribeConfigsResponse:
    """The entries of each resource."""

    throttle_time_ms: Int32 = 0
    results: list[DescribeConfigsResult] = field()


@struct
class DescribeConfigsResult:
    error_code: Int16 = 0
    error_message: String | None = ""
    resource_type: Int8 = 0
    resource_name: String = ""
    configs: list[DescribeConfigsResourceResult] = field()


@struct
class DescribeConfigsResourceResult:
    name: String = ""
    # null when it is sensitive
    value: String | None = ""
    read_only: Bool = False
    # 1 topic, 2 this broker (dynamic), 3 all brokers (dynamic), 4 file, 5 default, 6 logger, 7 client metrics, 8 group
    config_source: Int8 = -1
    is_sensitive: Bool = False
    # where the value comes from, strongest first
    synonyms: list[DescribeConfigsSynonym] = field()
    # 1 boolean, 2 string, 3 int, 4 short, 5 long, 6 double, 7 list, 8 class, 9 password
    config_type: Int8 = field(versions="3+", ignorable=True)
    documentation: String | None = field(versions="3+", ignorable=True)


@struct
class DescribeConfigsSynonym:
    name: String = ""
    value: String | None = ""
    source: Int8 = 0
