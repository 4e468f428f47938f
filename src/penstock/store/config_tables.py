"""What the JSON files under `config/` hold; see `penstock.format.config_tables`, which the network shares."""

from penstock.format.config_tables import (
    Bean,
    ConsumerFilters,
    ConsumerOffsets,
    DataVersion,
    DelayOffsets,
    Json,
    SubscriptionGroup,
    SubscriptionGroups,
    TopicConfig,
    Topics,
)

__all__ = [
    "Bean",
    "ConsumerFilters",
    "ConsumerOffsets",
    "DataVersion",
    "DelayOffsets",
    "Json",
    "SubscriptionGroup",
    "SubscriptionGroups",
    "TopicConfig",
    "Topics",
]
