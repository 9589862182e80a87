"""Adapters to clusters. Ray is an optional dependency, which only `offrec.scale.ray_engine` imports."""
