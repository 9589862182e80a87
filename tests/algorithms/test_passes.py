"""Number of passes over the catalogue per update."""

from typing import Any

import pytest
from small_symbols import BY_SYMBOLS, symbols

from offrec import catalogue
from offrec.catalogue import stored_weights, tiled
from offrec.runs.options import resolve_options

STRONG = {"sl": 1, "dqn": 2, "pg": 1, "sl+dqn": 3, "sl+pg": 1, "sdac": 3, "sc": 5, "sr": 4, "pc": 4, "dc": 5, "re": 4}
STRONG |= {"snqn": 3, "sa2c": 3}
PAPER = {"sl": 1, "dqn": 1, "pg": 1, "sl+dqn": 2, "sl+pg": 1, "sdac": 5, "sc": 7, "sr": 6, "pc": 4, "dc": 7, "re": 6}
PAPER |= {"snqn": 3, "sa2c": 3}


@pytest.mark.parametrize("name", BY_SYMBOLS)
@pytest.mark.parametrize("preset", ["strong", "paper"])
def test_passes_over_the_catalogue(monkeypatch: pytest.MonkeyPatch, preset: str, name: str) -> None:
    passes = 0

    def counted(real: Any) -> Any:
        def once(*given: Any, **more: Any) -> Any:
            nonlocal passes
            passes += 1
            return real(*given, **more)

        return once

    options = resolve_options({"algorithm.name": name, "preset": preset}, "events")
    x = symbols(unlogged=2 if options.learner.needs.critic != "none" and options.critic.ground else 0)
    for module, function in ((tiled, "reduce"), (tiled, "maximum"), (stored_weights, "logsumexp")):
        monkeypatch.setattr(module, function, counted(getattr(module, function)))
    with catalogue.use_backend("tiled"):
        options.learner.loss(x)
    assert passes == {"strong": STRONG, "paper": PAPER}[preset][name]
