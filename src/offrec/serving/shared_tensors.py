"""Share the weights of a policy between processes: one file that all of them map into memory.

The file is a copy in a temporary folder, not the checkpoint of the run. A mapped file that somebody truncates would end
the process, and one that somebody overwrites would change the weights without verification.
"""

from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from offrec.errors import InputError


def write_tensors(module: nn.Module, path: Path) -> None:
    """Write the parameters and buffers of a module to a file.

    Args:
        module: The module, on the CPU.
        path: The file to create.

    Raises:
        InputError: If the file cannot be written.
    """
    try:
        save_file({name: tensor.detach().contiguous() for name, tensor in _named_tensors(module)}, path)
    except (SafetensorError, OSError) as error:
        raise InputError(
            f"{path.parent} cannot be written ({error}); --workers needs space for a copy of the weights there: "
            "set TMPDIR to another folder."
        ) from error


def map_tensors(module: nn.Module, path: Path) -> None:
    """Replace the parameters and buffers of a module by those in a file, without copying them to memory.

    The file may be removed afterwards; the system keeps it until no process uses it.

    Args:
        module: The module, on the CPU.
        path: A file that `write_tensors` wrote from the same network.
    """
    with safe_open(path, "pt") as file:
        for name, tensor in _named_tensors(module):
            tensor.data = file.get_tensor(name)


def _named_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters()  # without duplicates of tied parameters
    yield from module.named_buffers()
