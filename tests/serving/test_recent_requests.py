"""Request ids are known in all processes, also after many others, and others are not."""

import subprocess
import sys

from offrec.serving.recent_requests import RecentRequests

# The test process has threads, and a fork of such a process can block. This program has none.
TWO_PROCESSES = r"""
import os; from offrec.serving.recent_requests import RecentRequests
requests = RecentRequests()
child = os.fork()
if child == 0:
    requests.add("a\ud800")
    os._exit(0)
os.waitpid(child, 0)
print("a\ud800" in requests, "b" in requests)
"""


def test_ids_of_another_process_are_known() -> None:
    done = subprocess.run([sys.executable, "-c", TWO_PROCESSES], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "True False\n"


def test_recent_ids_are_known_and_others_are_not() -> None:
    requests, count = RecentRequests(), 20_000
    for number in range(count):
        requests.add(f"r{number}")
        requests.add(f"r{number}")  # a repeated id needs no further place
    assert all(f"r{number}" in requests for number in range(count))
    assert not any(f"x{number}" in requests for number in range(count))


def test_items_of_a_list_are_never_reported_as_missing() -> None:
    requests = RecentRequests()
    lists = {f"r{number}": [number * 10 + place for place in range(10)] for number in range(2_000)}
    for name, items in lists.items():
        requests.add(name, items[:5])
        requests.add(name, items[5:])  # a repeated request with another list
    assert all(requests.may_contain(name, item) for name, items in lists.items() for item in items)
    assert requests.may_contain("r3", "35"), "ids are compared as text"
    wrong = sum(bool(requests.may_contain(name, f"other-{name}")) for name in lists)
    assert wrong < 0.03 * len(lists), "1 % of the other items match the filter of 10 items"
    assert requests.may_contain("unknown", 1) is None
    requests.add("empty")
    assert requests.may_contain("empty", 1) is False
