"""The commands. Each is a dataclass: its fields are the flags, and their docstrings are the help texts."""
