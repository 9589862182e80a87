"""Which backend runs, and that all functions use it."""

import importlib.util
import subprocess
import sys

import pytest
import torch

from offrec.catalogue import Head, logsumexp, maximum, reduce, reference, tiled, use_backend
from offrec.catalogue.backend import backend_for


def small() -> Head:
    return Head(torch.ones(2, 3), torch.ones(5, 3))


def test_a_cpu_uses_the_tiled_backend() -> None:
    assert backend_for(small()) == "tiled"


def test_use_backend_applies_only_inside_its_block() -> None:
    with use_backend("reference"):
        assert backend_for(small()) == "reference"
        with use_backend("auto"):
            assert backend_for(small()) == "tiled"
        assert backend_for(small()) == "reference"
        with pytest.raises(ZeroDivisionError), use_backend("kernels"):
            raise ZeroDivisionError
        assert backend_for(small()) == "reference"
    assert backend_for(small()) == "tiled"


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(ValueError, match="one of auto, reference, tiled, kernels"), use_backend("dense"):
        pass


def test_every_function_uses_the_chosen_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ZeroDivisionError

    calls = (logsumexp, reduce, maximum)
    with monkeypatch.context() as patch:
        patch.setattr(reference, "logits", refuse)
        for call in calls:
            call(small())
            with pytest.raises(ZeroDivisionError), use_backend("reference"):
                call(small())
    monkeypatch.setattr(tiled, "tile_width", refuse)
    for call in calls:
        with use_backend("reference"):
            call(small())
        with pytest.raises(ZeroDivisionError):
            call(small())


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is absent anyway")
def test_triton_is_imported_only_for_kernels() -> None:
    code = "import sys, torch; torch_did = 'triton' in sys.modules; import offrec.catalogue as c; "
    code += "c.logsumexp(c.Head(torch.ones(2, 3), torch.ones(5, 3))); "
    code += "sys.exit('triton' in sys.modules and not torch_did)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
