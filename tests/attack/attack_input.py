"""Fuzzed tables and commands: each function makes one random case."""

import gzip
import json
import random
import shutil
import sys
from contextlib import chdir
from pathlib import Path
from typing import Any

import attack_base
from attack_target import LARGE, NUMBERS, TEXTS, Attack, Case

from offrec import cli
from offrec.commands.evaluate import Evaluate
from offrec.commands.prepare import Prepare
from offrec.commands.recommend import Recommend
from offrec.commands.studies import Compare, Execution
from offrec.commands.verify import Verify
from offrec.data.options import PrepareOptions
from offrec.reports.report import build_report
from offrec.reports.writing import write_report
from offrec.runs.train import train
from offrec.serving.export import export_onnx

SMALL = tuple(f"{key}={value}" for key, value in attack_base.SMALL.items())


def fuzzed_tables(attack: Attack, choose: random.Random) -> Case:
    """Prepare a table with strange ids, behaviours, times, separators, encodings or compressed content."""
    path, out, run, study = (attack.scratch / name for name in ("table", "fuzzed", "fuzzed-run", "fuzzed-study"))
    lists, model, report = (attack.scratch / f"fuzzed{suffix}" for suffix in (".csv", ".onnx", ".html"))
    ids = [choose.choice(TEXTS) for _ in range(5)] + [f"i{n}" for n in range(5)]
    names = ["session", "item", *choose.sample(["time", "behaviour", "position", "note"], choose.randrange(3))]
    if choose.random() < 0.15:
        names = choose.sample(["session", "item", "time", "user", "propensity", "offered", choose.choice(TEXTS)], 4)
    rows = []
    for number in range(choose.randrange(60)):
        row: dict[str, Any] = dict.fromkeys(names, "x")
        row |= {"session": f"s{number // 3}", "item": choose.choice(ids), "time": number, "position": number}
        row |= {"behaviour": choose.choice(["view", "buy", ids[0]])}
        if choose.random() < 0.02:
            row[choose.choice(list(row))] = str(choose.choice(NUMBERS))
        rows.append({name: row[name] for name in names})
    form = choose.choice(["csv", "tsv", "jsonl"])
    if form == "jsonl":
        data = "\n".join(json.dumps(row) for row in rows)
    else:
        separator = "," if form == "csv" else "\t"
        cell = str if choose.random() < 0.2 else (lambda text: '"' + str(text).replace('"', '""') + '"')
        lines = [names, *(row.values() for row in rows)]
        data = "\n".join(separator.join(map(cell, line)) for line in lines)
    encoding = "utf-8" if choose.random() < 0.9 else choose.choice(["utf-16", "latin1"])
    content = bytearray(data.encode(encoding, errors="replace"))
    for _ in range(choose.choice([0] * 7 + [1, 5])):
        if content:
            content[choose.randrange(len(content))] = choose.randrange(256)
    blob = gzip.compress(bytes(content)) if choose.random() < 0.2 else bytes(content)
    blob = blob[: choose.randrange(len(blob) + 1)] if choose.random() < 0.05 else blob
    path.write_bytes(blob)
    kind = "events" if choose.random() < 0.8 else choose.choice(["decisions", "served", "retailrocket", "yoochoose"])
    preparing = Prepare((str(path),), out, PrepareOptions(format=kind), force=True, json=choose.random() < 0.5)
    depth, history = choose.random(), [choose.choice(ids) for _ in range(2)]

    def command() -> None:
        preparing.run()
        Evaluate(baselines="recent", dataset=out, device="cpu", json=depth < 0.5).run()
        if depth < 0.08:  # strange ids and behaviours through training and recommendations too
            train(out, run, settings=attack_base.SMALL, device="cpu", console=attack_base.QUIET)
            Recommend(run, history=",".join(history), k=1, device="cpu", json=depth < 0.04).run()
            Evaluate((run,), device="cpu").run()
            table = (str(path),)
            Recommend(run, input=table, out=lists, k=1, device="cpu", force=True, json=True).run()
            Verify((out, run)).run()
        if depth < 0.03:
            export_onnx(run, model, force=True)
            options: dict[str, Any] = {"algorithms": "sl", "baselines": "recent", "seeds": "1", "set": SMALL}
            Compare((out,), study, execution=Execution(device="cpu", json=True), **options).run()
            write_report(build_report([study]), [report])

    def check(code: int) -> bool:
        return not any(name.name.startswith(".fuzzed") for name in attack.scratch.iterdir())

    return Case(
        "fuzzed tables",
        f"{form} as {kind}",
        command,
        None,
        lambda: remove(path, *attack.scratch.glob("fuzzed*")),
        check,
    )


def remove(*paths: Path) -> None:
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def fuzzed_commands(attack: Attack, choose: random.Random) -> Case:
    """Give a command random flags, values, paths and options, through the command line's own parser."""
    base, out = attack.base, attack.scratch / "command"
    text, number = choose.choice(TEXTS), str(choose.choice(NUMBERS))
    value = choose.choice([text, number])
    keys = [
        "network.width",
        "network.layers",
        "network.heads",
        "training.epochs",
        "training.batch_size",
        "gamma",
        "seed",
        "network.history",
        "critic.ground",
        "training.learning_rate",
        "reward.view",
        "network.dropout",
        "select",
        text,
    ]
    names = (
        "data",
        "run",
        "run_lists",
        "lists",
        "study",
        "shop",
        "items",
        "run_items",
        "later",
        "warm",
        "rounds",
        "served",
        "held",
    )
    here = {name: str(base / name) for name in names}
    place = choose.choice([*here.values(), text])
    cpu = ["--device", "cpu"]
    commands = [
        ["recommend", here["run"], "-k", value, "--history", choose.choice(TEXTS), "--device", "cpu"],
        [
            "recommend",
            here["run"],
            "--candidates",
            text,
            "--exclude",
            choose.choice(TEXTS),
            "--json",
            "--device",
            "cpu",
        ],
        ["evaluate", here["run"], "--dataset", choose.choice([*here.values(), text]), "--score-last", value],
        ["evaluate", "--baselines", text, "--dataset", here["data"]],
        [
            "train",
            here["data"],
            "--out",
            str(out),
            "--set",
            f"{choose.choice(keys[:-1])}={choose.choice(['-1', '0', text])}",
            "--set",
            "training.epochs=0",
        ],
        ["train", here["data"], "--out", str(out), "--set", f"{choose.choice(keys)}={value}", "--algorithm", "none"],
        ["prepare", choose.choice([text, *here.values()]), "--out", str(out), "--filter", text],
        ["prepare", f"{here['shop']}/events.parquet", "--out", str(out), "--sample", number, "--split-seed", value],
        ["prepare", f"{here['shop']}/events.parquet", "--out", str(out), "--gap-minutes", value, "--item", text],
        [
            "shop",
            "--world",
            choose.choice([text, "tiny"]),
            "--sessions",
            choose.choice(["-1", "0", text, LARGE]),
            "--out",
            str(out),
        ],
        [
            "simulate",
            here["run"],
            "--dataset",
            here["data"],
            "--sessions",
            choose.choice(["-1", "0", text, LARGE]),
            "--gamma",
            value,
        ],
        [
            "estimate",
            here["run"],
            "--dataset",
            choose.choice(list(here.values())),
            "--gamma",
            value,
            "--refits",
            "0",
            "--estimator",
            choose.choice(["importance", text]),
        ],
        [
            "report",
            choose.choice(list(here.values())),
            "--out",
            choose.choice([str(out) + ".csv", str(base), "/dev/null"]),
            "--cutoffs",
            value,
        ],
        [
            "compare",
            here["data"],
            "--out",
            choose.choice([str(out), here["run"]]),
            "--algorithms",
            text,
            "--seeds",
            value,
        ],
        ["options", "--algorithm", text],
        ["verify", choose.choice([*here.values(), text])],
        [text],
        [text, value],
        ["export", here["run"], "--out", choose.choice([text, here["data"]])],
        ["tune", here["data"], "--trials", value],
        ["sweep", here["data"], "--vary", text, "--out", str(out)],
        ["train", here["data"], "--config", text, "--out", str(out)],
        # A training that is accepted stops at once: it has no epochs.
        ["train", here["later"], "--from", place, "--out", str(out),
         "--set", f"training.epochs={choose.choice(['0', '-1'])}"],
        ["train", here["data"], "--logging-policy", place, "--out", str(out), "--algorithm", "dc",
         "--set", f"gamma={value}", "--set", "training.epochs=0"],
        ["train", here["data"], "--out", choose.choice([".", "..", here["lists"], here["run"]]), "--seeds", value,
         "--set", "training.epochs=0"],
        ["rounds", "--world", choose.choice([text, "tiny"]), "--sessions", "-1", "--out", str(out), "--explore", text],
        ["rounds", "--world", "tiny", "--out", place, "--rounds", value, "--visitors", number, "--sessions", "0"],
        ["rounds", "--world", "tiny", "--out", choose.choice([here["run"], here["rounds"]]), "--explore", text],
        ["ab", place, "--reward", choose.choice([text, f"view={value}"]), "--window-hours", value],
        ["ab", here["served"], "--confidence", value, "--planned", number, "--picture", text],
        ["erase", choose.choice([place, here["served"]]), "--session", choose.choice(["", text])],
        ["prepare", f"{here['shop']}/events.parquet", "--items", place, "--out", str(out)],
        ["prepare", f"{here['shop']}/events.parquet", "--items", f"{here['shop']}/items.parquet", "--catalogue", place,
         "--out", str(out)],
        ["prepare", here["served"], "--format", "served", "--reward", text, "--out", str(out)],
        ["prepare", f"{here['shop']}/events.parquet", "--reward", choose.choice([text, "time"]),
         "--reward-behaviours", text, "--out", str(out)],
        ["recommend", here["run_items"], "--new-items", place, "-k", value, *cpu],
        ["recommend", here["run"], "--allow", place, "--deny", choose.choice([place, text]), "--shown", text, *cpu],
        ["recommend", here["run"], "--input", place, "--out", choose.choice([text, f"{out}.csv"]), "-k", "2", *cpu],
        ["evaluate", place, "--baselines", choose.choice(["all", text]), "--dataset", here["later"], *cpu],
        ["evaluate", here["run"], here["warm"], "--dataset", place, "--unseen", choose.choice(["keep", text]), *cpu],
        ["estimate", here["run_lists"], "--dataset", place, "--estimator", "importance", "--gamma", value, *cpu],
        ["shop", "--world", "tiny", "--sessions", "5", "--policy", place, "--play", choose.choice(["topk", text]),
         "--out", str(out)],
        ["serve", text, "--port", "0", "--split", text, *cpu],
        ["serve", here["data"], "--port", "0", "--log", place, *cpu],
        ["serve", here["run"], "--port", choose.choice(["-1", "99999"]), "--lists", place, "--explore", value, *cpu],
        ["verify", place, choose.choice(list(here.values()))],
    ]  # fmt: skip
    words = choose.choice(commands)
    words = [word for word in words if "\0" not in word]
    if choose.random() < 0.2:
        words.insert(choose.randrange(len(words) + 1), choose.choice([*TEXTS[:4], f"--{text}", "--json", "--out"]))

    place_to_run = attack.scratch / "here"  # relative paths end here
    place_to_run.mkdir(exist_ok=True)

    def command() -> None:
        sys.argv = ["offrec", *words]
        with chdir(place_to_run):
            cli.main()

    before = {path: path.stat().st_mtime_ns for path in attack.originals}

    def check(code: int) -> bool:
        return all(path.exists() and path.stat().st_mtime_ns == time for path, time in before.items())

    shown = " ".join(word[:40] for word in words).replace(str(base), "BASE")

    def restore() -> None:
        remove(out, out.with_suffix(".csv"), *place_to_run.iterdir())

    return Case("fuzzed commands", shown, command, None, restore, check)
