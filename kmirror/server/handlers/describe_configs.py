"""DescribeConfigs (32): effective configurations, where each value comes from, and what it does.

Versions: 1-4.

Behaviour: topics, this broker (by its id, or the empty name for what was set at run time for all brokers) and mirrors
(type 64, KIP-1279). A null or empty list of keys means all of them. Synonyms (KIP-226) and documentation (KIP-569) come
when asked for. An unknown resource type fails the whole request with INVALID_REQUEST.

Deviations: broker loggers, client metrics and groups cannot be described and are INVALID_REQUEST, each on its own.
Documentation is kmirror's own text.
"""

from __future__ import annotations

from kmirror.broker.topic_config import ConfigEntry
from kmirror.errors import ApiError
from kmirror.protocol.api.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from kmirror.protocol.errors import ErrorCode
from kmirror.server.context import RequestContext
from kmirror.server.handlers.list_config_resources import KNOWN_TYPES

VERSIONS = (1, 4)


def handle(context: RequestContext, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    unknown = [resource.resource_type for resource in request.resources if resource.resource_type not in KNOWN_TYPES]
    if unknown:
        reason = f"unknown resource type {unknown[0]}"
        return DescribeConfigsResponse(
            results=[_refused(resource, ErrorCode.INVALID_REQUEST, reason) for resource in request.resources]
        )
    return DescribeConfigsResponse(results=[_describe(context, request, resource) for resource in request.resources])


def _describe(
    context: RequestContext, request: DescribeConfigsRequest, resource: DescribeConfigsResource
) -> DescribeConfigsResult:
    try:
        entries = context.world.describe_configs(
            resource.resource_type, resource.resource_name, resource.configuration_keys or None
        )
    except ApiError as error:
        return _refused(resource, error.code, error.message)
    return DescribeConfigsResult(
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=[
            _row(entry, synonyms=request.include_synonyms, documentation=request.include_documentation)
            for entry in entries
        ],
    )


def _row(entry: ConfigEntry, *, synonyms: bool, documentation: bool) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.sensitive,
        synonyms=[
            DescribeConfigsSynonym(name=name, value=value, source=source) for name, value, source in entry.synonyms
        ]
        if synonyms
        else [],
        config_type=entry.kind,
        documentation=entry.documentation if documentation else None,
    )


def _refused(resource: DescribeConfigsResource, code: int, reason: str | None) -> DescribeConfigsResult:
    return DescribeConfigsResult(
        error_code=code,
        error_message=reason or "",
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
