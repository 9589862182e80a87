"""What a policy would earn, from the log alone, and how far that can be trusted."""
