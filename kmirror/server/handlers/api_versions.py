"""ApiVersions (18): which APIs, at which versions, and which features.

Versions: 0-5. An unknown version is answered in version 0 with UNSUPPORTED_VERSION and the range of this API alone
(KIP-511); its body is not read.

Behaviour: the list is computed from the table of handlers; Produce is advertised from version 0 because old librdkafka
derives the codecs it may use from it (KIP-896). A client software name or version that is not a word of letters,
digits, dots and dashes is INVALID_REQUEST. From version 5 a client that expected another cluster or node is told
REBOOTSTRAP_REQUIRED, one that names only half of the two INVALID_REQUEST (KIP-1242). Features whose lowest level is 0
are listed from version 4 on (KIP-584, KIP-1022).

Deviations: APIs and features that kmirror does not serve yet are not listed.
"""

from __future__ import annotations

import re

from kmirror.protocol.api.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from kmirror.protocol.errors import ErrorCode
from kmirror.server.context import RequestContext
from kmirror.server.features import SUPPORTED
from kmirror.server.handlers import TABLE, advertised

VERSIONS = (0, 5)
API_KEY = 18

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_FIRST_VERSION_WITH_SOFTWARE = 3
_FIRST_VERSION_WITH_ZERO_LEVELS = 4
_FIRST_VERSION_WITH_EXPECTATION = 5


def handle(context: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
    version = context.api_version
    if not _valid(request, version):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    if version >= _FIRST_VERSION_WITH_EXPECTATION and _expected_another(context, request):
        return ApiVersionsResponse(error_code=ErrorCode.REBOOTSTRAP_REQUIRED)
    world = context.world
    return ApiVersionsResponse(
        api_keys=[
            ApiVersion(api_key=key, min_version=served.min_version, max_version=served.max_version)
            for key, served in advertised(mirroring_enabled=world.image.mirroring_enabled).items()
        ],
        supported_features=[
            SupportedFeatureKey(name=name, min_version=low, max_version=high)
            for name, (low, high) in SUPPORTED.items()
            if low > 0 or version >= _FIRST_VERSION_WITH_ZERO_LEVELS
        ],
        finalized_features_epoch=world.metadata_offset,
        finalized_features=[
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in world.image.features.items()
        ],
    )


def _valid(request: ApiVersionsRequest, version: int) -> bool:
    if version >= _FIRST_VERSION_WITH_EXPECTATION and (request.cluster_id is None) != (request.node_id == -1):
        return False
    return version < _FIRST_VERSION_WITH_SOFTWARE or bool(
        _SOFTWARE.fullmatch(request.client_software_name) and _SOFTWARE.fullmatch(request.client_software_version)
    )


def _expected_another(context: RequestContext, request: ApiVersionsRequest) -> bool:
    world = context.world
    return request.cluster_id is not None and (request.cluster_id, request.node_id) != (world.cluster_id, world.node_id)


def unsupported_version() -> ApiVersionsResponse:
    """The answer, in version 0, to a version that is not served."""
    served = TABLE[API_KEY]
    return ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_keys=[ApiVersion(api_key=API_KEY, min_version=served.min_version, max_version=served.max_version)],
    )
