"""UpdateFeatures (57): set the finalized level of a feature (KIP-584, KIP-778).

Versions: 0-2.

Behaviour: all updates are applied, or none. An unknown feature, a level outside the supported range, and a lower level
without asking for a downgrade: INVALID_UPDATE_VERSION for the whole request, with the reason. `mirror.version` 0
switches the mirror APIs off (KIP-1279); with mirrors defined that needs an unsafe downgrade.

Deviations: `metadata.version` has one level.
"""

from __future__ import annotations

from kmirror.errors import ApiError
from kmirror.protocol import mirror_numbers
from kmirror.protocol.api.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from kmirror.protocol.errors import ErrorCode
from kmirror.server.context import RequestContext
from kmirror.server.features import SUPPORTED
from kmirror.server.waiting import settled

VERSIONS = (0, 2)

NO_ERROR = "NONE"
"""What Kafka says of each feature beside error code 0."""
UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
_FIRST_VERSION_WITH_TYPE = 1
_FIRST_VERSION_WITHOUT_RESULTS = 2


async def handle(context: RequestContext, request: UpdateFeaturesRequest) -> UpdateFeaturesResponse:
    updates = list({update.feature: update for update in request.feature_updates}.values())  # the last one counts
    for update in updates:
        problem = _problem(context, update)
        if problem is not None:
            return UpdateFeaturesResponse(
                error_code=ErrorCode.INVALID_UPDATE_VERSION,
                error_message="The update failed for all features since the following feature had an error: "
                f"Invalid update version {update.max_version_level} for feature {update.feature}. {problem}",
            )
    if not request.validate_only:
        for update in updates:
            if context.world.image.features.get(update.feature, 0) == update.max_version_level:
                continue
            try:
                await settled(context.world.set_feature(update.feature, update.max_version_level))
            except ApiError as error:
                return UpdateFeaturesResponse(error_code=error.code, error_message=error.message)
    response = UpdateFeaturesResponse(error_message=None)
    if context.api_version < _FIRST_VERSION_WITHOUT_RESULTS:
        response.results = [
            UpdatableFeatureResult(feature=update.feature, error_message=NO_ERROR) for update in request.feature_updates
        ]
    return response


def _problem(context: RequestContext, update: FeatureUpdateKey) -> str | None:
    supported = SUPPORTED.get(update.feature)
    level = update.max_version_level
    kind = update.upgrade_type
    if context.api_version < _FIRST_VERSION_WITH_TYPE:
        kind = SAFE_DOWNGRADE if update.allow_downgrade else UPGRADE
    if supported is None:
        return "This node does not support this feature."
    low, high = supported
    if not low <= level <= high:
        return f"This node only supports versions {low}-{high}."
    if kind not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        return "The upgrade type is not known."
    image = context.world.image
    if level < image.features.get(update.feature, 0):
        if kind == UPGRADE:
            return "A lower level needs the upgrade type for safe or unsafe downgrades."
        if update.feature == mirror_numbers.FEATURE and image.mirror_configs and kind == SAFE_DOWNGRADE:
            return (
                f"These mirrors would become unreachable: {', '.join(sorted(image.mirror_configs))}. Delete them first."
            )
    return None
