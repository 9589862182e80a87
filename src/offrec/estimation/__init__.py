"""Estimate what a policy would earn, from a log alone, and assess how far the estimate can be trusted."""
