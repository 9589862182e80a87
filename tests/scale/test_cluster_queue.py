"""A study on a cluster: the queue is the only record, and runs of dead processes are taken up again."""

from pathlib import Path

import pytest
from in_process import InProcess

from offrec.data.shared_folders import LockProbe, check_answers, check_shared_locks, find_mount, try_lock
from offrec.errors import InputError
from offrec.reports.report import build_report
from offrec.reports.text_formats import csv
from offrec.studies.cluster import MOST_DEATHS
from offrec.studies.stored_results import read_failure
from offrec.studies.study import Study
from offrec.studies.worker import RunCounts
from small_studies import finished, small_dataset, small_study

MOUNTS = """/dev/vda / ext4 rw,relatime 0 0
server:/runs /mnt/runs nfs4 rw,vers=4.2,local_lock=none 0 0
server:/old /mnt/old nfs rw,vers=3,nolock 0 0
server:/soft /mnt/soft nfs rw,vers=3,local_lock=flock 0 0
bucket /mnt/my\\040bucket fuse.gcsfuse rw 0 0
//server/share /mnt/share cifs rw 0 0
"""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_dataset(tmp_path_factory.mktemp("data"))


def tables(study: Study) -> str:
    return csv(build_report([study.folder]))


def test_tables_equal_those_of_one_machine_although_processes_die(dataset: Path, tmp_path: Path) -> None:
    choices = {"algorithms": "sl", "baselines": "recent", "seeds": "2"}
    one = small_study(dataset, tmp_path / "one" / "study", **choices)
    assert finished(one) == RunCounts(3, 0, 0)
    several, cluster = (
        small_study(dataset, tmp_path / "several" / "study", **choices),
        InProcess(deaths=MOST_DEATHS - 1),
    )
    assert finished(several, cluster=cluster) == RunCounts(3, 0, 0)
    assert cluster.jobs == 3 + MOST_DEATHS - 1
    assert tables(several) == tables(one)
    assert finished(several, cluster=cluster) == RunCounts(3, 0, 0)  # nothing is executed twice
    assert cluster.jobs == 3 + MOST_DEATHS - 1


def test_a_run_whose_processes_always_die_fails(dataset: Path, tmp_path: Path) -> None:
    study = small_study(dataset, tmp_path / "study", algorithms="sl", baselines="recent", seeds="1")
    assert finished(study, cluster=InProcess(deaths=99)) == RunCounts(0, 2, 0)
    assert "Its process died 3 times" in read_failure(study, study.runs[0])["reason"]
    assert finished(study, cluster=InProcess(), retry_failed=True) == RunCounts(2, 0, 0)


def test_a_time_limit_starts_no_run(dataset: Path, tmp_path: Path) -> None:
    study = small_study(dataset, tmp_path / "study", algorithms="sl", baselines="recent", seeds="1")
    assert finished(study, cluster=InProcess(), time_limit=-1.0) == RunCounts(0, 0, 2)


def test_several_jobs_and_a_cluster_exclude_each_other(dataset: Path, tmp_path: Path) -> None:
    study = small_study(dataset, tmp_path / "study", algorithms="sl", baselines="none", seeds="1")
    with pytest.raises(InputError, match="remove --jobs and --device"):
        finished(study, cluster=InProcess(), jobs=2)


def test_locks_are_visible_to_other_descriptors_only_while_they_are_held(tmp_path: Path) -> None:
    with LockProbe(tmp_path) as probe:
        assert try_lock(str(probe.path), probe.token) == "locked"
        assert try_lock(str(probe.path), "another") == "other"
        assert try_lock(str(tmp_path / "none"), probe.token) == "other"
        copy = tmp_path / "copy"
        copy.write_text(probe.token)
        assert try_lock(str(copy), probe.token) == "free"
    assert not probe.path.exists()


def test_machines_that_do_not_share_the_folder_are_refused() -> None:
    check_answers(Path("study"), {"a": "locked", "b": "locked"})
    with pytest.raises(InputError, match="The machine b has another folder study, or none; use a folder on a disk"):
        check_answers(Path("study"), {"a": "locked", "b": "other"})
    with pytest.raises(InputError, match="The machine b does not see the locks of study; use NFS with locks"):
        check_answers(Path("study"), {"a": "locked", "b": "free"})


def test_file_systems_without_locks_between_machines_are_refused() -> None:
    for allowed in ("/home/study", "/mnt/runs/study"):
        check_shared_locks(Path(allowed), MOUNTS)
    for folder, reason in {
        "/mnt/old/study": "mounted with the option nolock",
        "/mnt/soft/study": "mounted with the option local_lock=flock",
        "/mnt/my bucket/study": "a file system of the kind fuse.gcsfuse",
        "/mnt/share/study": "a file system of the kind cifs",
    }.items():
        with pytest.raises(InputError, match=f"{reason}, where several machines cannot lock files"):
            check_shared_locks(Path(folder), MOUNTS)
    assert find_mount(Path("/mnt/runs2"), MOUNTS).kind == "ext4"
