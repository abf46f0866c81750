"""IncrementalAlterConfigs (44): change single configurations and leave the others alone (KIP-339).

Versions: 0-1.

Behaviour: SET, DELETE, APPEND and SUBTRACT; a resource changes as a whole or not at all. The same resource twice: both
are INVALID_REQUEST. Bad names and values: INVALID_CONFIG; a null value and an unknown operation: INVALID_REQUEST. What
is wrong with the change is said before whether there is such a topic.
Topics, this broker and mirrors (type 64, KIP-1279) can be changed.

Deviations: broker loggers, client metrics and groups cannot be changed: INVALID_REQUEST. Kafka accepts unknown broker
properties and answers an unknown operation with UNKNOWN_SERVER_ERROR.
"""

from __future__ import annotations

from kmirror.broker.config_admin import ConfigOp
from kmirror.effects import Promise
from kmirror.errors import ApiError
from kmirror.protocol.api.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResourceResponse,
    IncrementalAlterConfigsResponse,
)
from kmirror.server.context import RequestContext
from kmirror.server.handlers.alter_configs import refusals, start
from kmirror.server.waiting import settled_until

VERSIONS = (0, 1)


async def handle(context: RequestContext, request: IncrementalAlterConfigsRequest) -> IncrementalAlterConfigsResponse:
    twice = refusals((resource.resource_type, resource.resource_name) for resource in request.resources)
    started = [
        start(
            context,
            (resource.resource_type, resource.resource_name),
            [ConfigOp(config.name, config.config_operation, config.value) for config in resource.configs],
            twice,
            replace=False,
            validate_only=request.validate_only,
        )
        for resource in request.resources
    ]
    await settled_until(started)
    return IncrementalAlterConfigsResponse(
        responses=[_row(resource, promise) for resource, promise in zip(request.resources, started, strict=True)]
    )


def _row(resource: IncrementalAlterConfigsResource, promise: Promise[None]) -> IncrementalAlterConfigsResourceResponse:
    row = IncrementalAlterConfigsResourceResponse(
        error_message=None, resource_type=resource.resource_type, resource_name=resource.resource_name
    )
    try:
        promise.result()
    except ApiError as error:
        row.error_code = error.code
        row.error_message = error.message
    return row
