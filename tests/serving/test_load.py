"""A short version of benchmarks/serving_load.py."""

from pathlib import Path

from load_clients import LoadPlan, check_log, run_load
from random_runs import write_run
from small_server import ServerProcess


def test_no_request_fails_under_load_and_kill_9_loses_no_answer(tmp_path: Path) -> None:
    """Idle connections exceed the limit, so that some are closed all the time; none of the clients' are."""
    run = write_run(tmp_path / "run", list(range(300)))
    plan = LoadPlan(items=300, connections=(8, 16), seconds=1.5, idle=100, reload_seconds=0.4)
    options = ("--log", tmp_path / "log", "--max-connections", 80, "--workers", 2)
    with ServerProcess(run, *options) as server:
        rows, counts = run_load(server, plan)
    assert not counts.errors
    assert counts.reloads >= 2
    assert counts.idle_connections > plan.idle, "closed by the limit, and connected again"
    assert len(counts.lists) > 30
    assert counts.events
    assert [row["connections"] for row in rows] == [8, 16]
    log = check_log(tmp_path / "log", counts)
    assert log["missing_lists"] == log["missing_events"] == 0
    assert log["records"] >= len(counts.lists) + len(counts.events)
    assert log["incomplete_lines"] <= 2, "at most one per worker"
    assert "Traceback" not in "".join(server.output)
