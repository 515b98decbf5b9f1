"""KV tensors in layers and tiers: the only place that touches transformers.cache_utils."""
