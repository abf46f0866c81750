"""UpdateFeatures, API key 57."""

from __future__ import annotations

from kmirror.protocol.schema import Bool, Int8, Int16, Int32, String, field, request, response, struct


@request(key=57, versions="0-2", flexible="0+")
class UpdateFeaturesRequest:
    """Raise or lower the levels of cluster features."""

    timeout_ms: Int32 = 60000
    feature_updates: list[FeatureUpdateKey] = field()
    validate_only: Bool = field(versions="1+")


@struct
class FeatureUpdateKey:
    feature: String = ""
    # below 1: switch the feature off
    max_version_level: Int16 = 0
    allow_downgrade: Bool = field(versions="0")
    # 1 upgrade, 2 safe downgrade, 3 unsafe downgrade
    upgrade_type: Int8 = field(versions="1+", default=1)


@response(key=57, versions="0-2", flexible="0+")
class UpdateFeaturesResponse:
    """The result; per feature only up to v1."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""
    results: list[UpdatableFeatureResult] = field(versions="0-1", ignorable=True)


@struct
class UpdatableFeatureResult:
    feature: String = ""
    error_code: Int16 = 0
    error_message: String | None = ""
