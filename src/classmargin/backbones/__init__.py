"""Networks behind one contract: inputs to features and logits."""

# Importing a module registers its networks.
from classmargin.backbones import (  # noqa: F401
    clip_towers,
    library_families,
    mae,
    resnet,
    small_networks,
    transformers_networks,
)
from classmargin.backbones.contract import Backbone, count_parameters
from classmargin.backbones.feature_cache import FeatureSet, cached_features, extract_features, probe_head
from classmargin.backbones.heads import CosineHead, GaussianHead, LinearHead, create_head
from classmargin.backbones.registry import (
    BackboneInfo,
    backbone_info,
    create_backbone,
    list_backbones,
    register_backbone,
    register_family,
)

__all__ = [
    "Backbone",
    "BackboneInfo",
    "CosineHead",
    "FeatureSet",
    "GaussianHead",
    "LinearHead",
    "backbone_info",
    "cached_features",
    "count_parameters",
    "create_backbone",
    "create_head",
    "extract_features",
    "list_backbones",
    "probe_head",
    "register_backbone",
    "register_family",
]
