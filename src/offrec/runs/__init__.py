"""Runs: options → plan → trainer → run folder → loaded policy."""
