"""The API page: signatures and docstrings of public names, as objects that the site's search knows."""

import dataclasses
import inspect
import re
from importlib import import_module
from types import ModuleType
from typing import Any

from reference_text import prose


def page(module_name: str, *names: str) -> str:
    """Return the entries of a module's public names, or of the names given."""
    module = import_module(module_name)
    chosen = names or tuple(_public(module))
    return "\n\n".join(_entry(f"{module_name}.{name}", getattr(module, name)) for name in chosen)


def _public(module: ModuleType) -> list[str]:
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return list(listed)
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == module.__name__
    ]


def _entry(path: str, value: Any, fence: str = "::::::") -> str:
    if inspect.isclass(value):
        return _class(path, value, fence)
    kind = "function" if inspect.isroutine(value) else "data"
    shown = _signature(value) if inspect.isroutine(value) else ""
    text = prose(inspect.getdoc(value) or "") if inspect.isroutine(value) else ""
    return f"{fence}{{py:{kind}}} {path}{shown}\n\n{text}\n{fence}"


def _class(path: str, kind: type, fence: str) -> str:
    directive = "exception" if issubclass(kind, BaseException) else "class"
    text = prose(inspect.getdoc(kind) or "") if not _is_generated_doc(kind) else ""
    members = [_member(name, value, fence[:-1]) for name, value in vars(kind).items() if _is_public_member(name, value)]
    body = "\n\n".join([text, *members])
    return f"{fence}{{py:{directive}}} {path}{_signature(kind)}\n\n{body}\n{fence}"


def _is_public_member(name: str, value: Any) -> bool:
    wanted = inspect.isfunction(value) or isinstance(value, property | classmethod | staticmethod)
    return wanted and not name.startswith("_")


def _member(name: str, value: Any, fence: str) -> str:
    if isinstance(value, property):
        return f"{fence}{{py:property}} {name}\n\n{prose(inspect.getdoc(value) or '')}\n{fence}"
    option = {classmethod: ":classmethod:\n", staticmethod: ":staticmethod:\n"}.get(type(value), "")
    function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
    shown = _signature(function, bound=not isinstance(value, staticmethod))
    return f"{fence}{{py:method}} {name}{shown}\n{option}\n{prose(inspect.getdoc(function) or '')}\n{fence}"


def _is_generated_doc(kind: type) -> bool:
    """Say whether dataclasses wrote the docstring, which then is the signature once more."""
    return dataclasses.is_dataclass(kind) and (kind.__doc__ or "").startswith(f"{kind.__name__}(")


def _signature(value: Any, bound: bool = False) -> str:
    try:
        signature = inspect.signature(value)
    except (ValueError, TypeError):
        return "()"
    parameters = list(signature.parameters.values())[1 if bound else 0 :]
    parameters = [p.replace(default=_Shown(p.default)) if p.default is not p.empty else p for p in parameters]
    text = str(signature.replace(parameters=parameters)).removesuffix(" -> None")
    text = re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])", "", text)  # module paths
    return re.sub(r"'([A-Z][^']*)'", r"\1", text)  # the quotes of annotations that are text


class _Shown:
    """A default whose text is short: no addresses, no enum paths."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        text = repr(self.value)
        return "…" if " at 0x" in text or "<factory>" in text or len(text) > 60 else text
