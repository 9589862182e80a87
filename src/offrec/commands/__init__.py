"""The commands: each a dataclass whose fields are its flags and whose docstrings are its help."""
