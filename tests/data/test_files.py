"""Files and folders appear complete or not at all."""

import errno
import os
import subprocess
import sys
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from offrec.data import files
from offrec.data.files import publish_file, publish_files, publish_folder, publish_text, remove_leftovers
from offrec.errors import InputError, RunError


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def write_half(path: Path, error: BaseException) -> None:
    path.write_text("half")
    raise error


def finished_process() -> int:
    """The id of a process that no longer runs."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_file_gets_its_new_content_and_nothing_else_remains(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    path.write_text("old")
    with publish_file(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
        assert temporary.parent == tmp_path
        assert temporary.suffix == ".json"
    assert path.read_text() == "new"
    assert names(tmp_path) == ["figures.json"]


def test_missing_parent_folders_are_created(tmp_path: Path) -> None:
    publish_text(tmp_path / "a" / "b" / "text.txt", "é")
    assert (tmp_path / "a" / "b" / "text.txt").read_bytes() == "é".encode()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("boom")])
def test_an_error_in_the_middle_leaves_the_old_file(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "figures.json"
    path.write_text("old")
    with pytest.raises(type(error)), publish_file(path) as temporary:
        write_half(temporary, error)
    assert path.read_text() == "old"
    assert names(tmp_path) == ["figures.json"]


def test_a_killed_process_leaves_the_old_file_and_the_next_writer_cleans_up(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    path.write_text("old")
    code = (
        "import os, sys; from pathlib import Path; from offrec.data.files import publish_file\n"
        "with publish_file(Path(sys.argv[1])) as temporary:\n"
        "    temporary.write_text('half'); os._exit(1)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == 1
    assert path.read_text() == "old"
    assert len(names(tmp_path)) == 2
    publish_text(path, "new")
    assert names(tmp_path) == ["figures.json"]


def test_data_reaches_the_disk_before_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    flush, replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda descriptor: (steps.append("flush"), flush(descriptor))[1])
    monkeypatch.setattr(Path, "replace", lambda path, target: (steps.append("rename"), replace(path, target))[1])
    publish_text(tmp_path / "text.txt", "new")
    assert steps == ["flush", "rename", "flush"]


def _report_temporary_name(path: Path, connection: Connection) -> None:
    with publish_file(path) as temporary:
        temporary.write_text(f"process {os.getpid()}")
        connection.send(temporary.name)
        connection.recv()


def test_two_processes_never_share_a_temporary_name(tmp_path: Path) -> None:
    context, path = get_context("spawn"), tmp_path / "figures.json"
    connections, processes = [], []
    for _ in range(2):
        here, there = context.Pipe()
        processes.append(context.Process(target=_report_temporary_name, args=(path, there)))
        processes[-1].start()
        connections.append(here)
    temporary = [connection.recv() for connection in connections]
    assert len(set(temporary)) == 2
    assert names(tmp_path) == sorted(temporary)  # neither removed the other's file
    for connection in connections:
        connection.send("finish")
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert names(tmp_path) == ["figures.json"]


def test_two_calls_in_one_process_never_share_a_temporary_name(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    with publish_file(path) as first, publish_file(path) as second:
        assert first != second
        first.write_text("first")
        second.write_text("second")
    assert path.read_text() == "first"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_write_permission_is_one_sentence(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(InputError) as caught:
            publish_text(tmp_path / "text.txt", "new", advice="choose another --out")
    finally:
        tmp_path.chmod(0o700)
    assert str(caught.value) == f"{tmp_path}/text.txt cannot be written (Permission denied); choose another --out."


def test_a_parent_that_is_a_file_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError) as caught:
        publish_text(tmp_path / "file" / "text.txt", "new")
    assert str(caught.value) == (
        f"{tmp_path}/file/text.txt cannot be written ({tmp_path}/file is not a folder); "
        "free disk space or choose another path."
    )


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), OSError("8 requested, 0 written")])
def test_a_full_disk_is_one_sentence(tmp_path: Path, error: OSError) -> None:
    with pytest.raises(RunError) as caught, publish_folder(tmp_path / "dataset") as temporary:
        write_half(temporary / "items.npy", error)
    reason = error.strerror or str(error)
    assert str(caught.value) == (
        f"{tmp_path}/dataset cannot be written ({reason}); free disk space or choose another path."
    )
    assert names(tmp_path) == []


def test_a_closed_pipe_is_not_reported_as_a_fault_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(BrokenPipeError), publish_file(tmp_path / "text.txt"):
        raise BrokenPipeError


def test_a_folder_appears_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "dataset"
    with publish_folder(path) as temporary:
        (temporary / "items.npy").write_text("items")
        assert not path.exists()
    assert names(tmp_path) == ["dataset"]
    assert names(path) == ["items.npy"]


def test_a_folder_that_is_not_empty_is_replaced_only_on_request(tmp_path: Path) -> None:
    path = tmp_path / "dataset"
    path.mkdir()
    (path / "old").write_text("")
    with pytest.raises(InputError, match="not empty"), publish_folder(path) as temporary:
        (temporary / "new").write_text("")
    assert names(path) == ["old"]
    with publish_folder(path, replace=True) as temporary:
        (temporary / "new").write_text("")
    assert names(path) == ["new"]
    assert names(tmp_path) == ["dataset"]


@pytest.mark.parametrize("can_exchange", [True, False])
def test_readers_never_miss_a_folder_that_is_replaced_if_names_can_be_exchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_exchange: bool
) -> None:
    path = tmp_path / "dataset"
    path.mkdir()
    present: list[bool] = []
    if not can_exchange:
        monkeypatch.setattr(files, "_exchange", lambda one, other: False)
    rename, remove = Path.rename, files.shutil.rmtree
    monkeypatch.setattr(Path, "rename", lambda one, other: (rename(one, other), present.append(path.exists()))[0])
    monkeypatch.setattr(
        files.shutil, "rmtree", lambda *args, **options: (present.append(path.exists()), remove(*args, **options))[1]
    )
    with publish_folder(path, replace=True) as temporary:
        (temporary / "new").write_text("")
    assert names(path) == ["new"]
    assert names(tmp_path) == ["dataset"]
    assert all(present) == can_exchange


def test_a_process_killed_between_two_moves_is_finished_by_the_next(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("model.ids.json", "model.json", "model.onnx")]
    for path in paths:
        path.write_text("old")
    complete = leftover(paths[-1], finished_process(), files.COMPLETE)
    complete.mkdir()
    paths[0].write_text("new")
    for path in paths[1:]:
        (complete / path.name).write_text("new")
    remove_leftovers(paths[-1])
    assert [path.read_text() for path in paths] == ["new"] * 3
    assert len(names(tmp_path)) == 3


def test_devices_and_other_special_files_are_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (Path("/dev/null"), tmp_path / "fifo", tmp_path):
        with pytest.raises(InputError, match="it exists and is not a regular file"):
            publish_text(path, "new")


def test_an_error_in_the_middle_leaves_the_old_folder(tmp_path: Path) -> None:
    path = tmp_path / "dataset"
    path.mkdir()
    (path / "old").write_text("")
    with pytest.raises(KeyboardInterrupt), publish_folder(path, replace=True):
        raise KeyboardInterrupt
    assert names(path) == ["old"]
    assert names(tmp_path) == ["dataset"]


def test_an_error_between_the_two_renames_restores_the_old_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, rename = tmp_path / "dataset", Path.rename
    path.mkdir()
    (path / "old").write_text("")

    def fail_for_the_new_folder(source: Path, target: Path) -> Path:
        if source.name.endswith(files.TEMPORARY):
            raise OSError(errno.EIO, "Input/output error")
        return rename(source, target)

    monkeypatch.setattr(files, "_exchange", lambda one, other: False)
    monkeypatch.setattr(Path, "rename", fail_for_the_new_folder)
    with pytest.raises(RunError, match="Input/output error"), publish_folder(path, replace=True):
        pass
    assert names(path) == ["old"]
    assert names(tmp_path) == ["dataset"]


def leftover(path: Path, process: int, kind: str, host: str | None = None) -> Path:
    return path.with_name(f".{path.name}.{host or files._host()}-{process}-0f.{kind}")


def test_a_process_killed_between_the_two_renames_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "dataset"
    old = leftover(path, finished_process(), files.REPLACED)
    old.mkdir()
    (old / "old").write_text("")
    remove_leftovers(path)
    assert names(path) == ["old"]


def test_only_leftovers_of_finished_processes_of_this_machine_are_removed(tmp_path: Path) -> None:
    path, gone = tmp_path / "dataset", finished_process()
    leftover(path, gone, files.TEMPORARY).mkdir()
    others = [leftover(path, os.getppid(), files.TEMPORARY), leftover(path, gone, files.TEMPORARY, "abcdef")]
    for other in others:
        other.mkdir()
    remove_leftovers(path)
    assert names(tmp_path) == sorted(other.name for other in others)


def test_files_that_belong_together_move_together(tmp_path: Path) -> None:
    paths = [tmp_path / "model.json", tmp_path / "model.data", tmp_path / "model.onnx"]
    for path in paths:
        path.write_text("old")
    with publish_files(paths) as temporary:
        (temporary / "model.json").write_text("new")
        (temporary / "model.onnx").write_text("new")
    assert names(tmp_path) == ["model.json", "model.onnx"]  # the new model has no model.data
    with pytest.raises(ValueError, match="boom"), publish_files(paths):
        raise ValueError("boom")
    assert [path.read_text() for path in (paths[0], paths[2])] == ["new", "new"]
