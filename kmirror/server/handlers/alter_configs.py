"""AlterConfigs (33): replace a resource's whole configuration.

Versions: 0-2.

Behaviour: what the request does not name goes back to its default. Otherwise as IncrementalAlterConfigs: a resource
changes as a whole or not at all, the same resource twice is INVALID_REQUEST, a bad name or value INVALID_CONFIG, a null
value INVALID_REQUEST.

Deviations: broker loggers, client metrics and groups cannot be changed: INVALID_REQUEST.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from kmirror.broker.config_admin import ConfigOp, ConfigOperation
from kmirror.effects import Promise
from kmirror.errors import ApiError
from kmirror.protocol.api.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)
from kmirror.protocol.errors import ErrorCode
from kmirror.server.context import RequestContext
from kmirror.server.waiting import settled_until

VERSIONS = (0, 2)

Resource = tuple[int, str]


async def handle(context: RequestContext, request: AlterConfigsRequest) -> AlterConfigsResponse:
    twice = refusals((resource.resource_type, resource.resource_name) for resource in request.resources)
    started = [
        start(
            context,
            (resource.resource_type, resource.resource_name),
            [ConfigOp(config.name, ConfigOperation.SET, config.value) for config in resource.configs],
            twice,
            replace=True,
            validate_only=request.validate_only,
        )
        for resource in request.resources
    ]
    await settled_until(started)
    return AlterConfigsResponse(
        responses=[_row(resource, promise) for resource, promise in zip(request.resources, started, strict=True)]
    )


def refusals(resources: Iterable[Resource]) -> set[Resource]:
    """Resources that a request names more than once."""
    return {resource for resource, count in Counter(resources).items() if count > 1}


def start(
    context: RequestContext,
    resource: Resource,
    operations: list[ConfigOp],
    twice: set[Resource],
    *,
    replace: bool,
    validate_only: bool,
) -> Promise[None]:
    """Begin one resource's change; refusals are in the promise."""
    if resource in twice:
        promise: Promise[None] = Promise()
        promise.fail(ApiError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once."))
        return promise
    kind, name = resource
    return context.world.alter_configs(kind, name, operations, replace=replace, validate_only=validate_only)


def _row(resource: AlterConfigsResource, promise: Promise[None]) -> AlterConfigsResourceResponse:
    row = AlterConfigsResourceResponse(
        error_message=None, resource_type=resource.resource_type, resource_name=resource.resource_name
    )
    try:
        promise.result()
    except ApiError as error:
        row.error_code = error.code
        row.error_message = error.message
    return row
