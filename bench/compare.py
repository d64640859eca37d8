#!/usr/bin/env python3
"""compare.py RESULTS KV - what compare.sh measured, as markdown tables of medians and ratios."""
import json
import re
import statistics
import sys

ARMS = ("passthrough", "everysec", "always")


def number(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def median(values):
    return number(statistics.median(values)) if values else "fails"


def ratio(by_turn, arm, base):
    """The median over the turns in which both were measured."""
    turns = [t for t in by_turn[arm] if by_turn[base].get(t)]
    return f"{statistics.median(by_turn[arm][t] / by_turn[base][t] for t in turns):.2f}" if turns else "-"


def table(columns, rows):
    print("| " + " | ".join(columns) + " |")
    print("|---" + "|---:" * (len(columns) - 1) + "|")
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print()


def fs_row(runs, phase):
    rate = {arm: {} for arm in ARMS}
    latency = {arm: [] for arm in ARMS}
    for run in runs:
        for p in run["phases"]:
            if p["phase"] == phase and "error" not in p:
                rate[run["arm"]][run["turn"]] = p["rate"]
                latency[run["arm"]].append((p["p50_us"], p["p99_us"]))
    times = " / ".join(median([pair[i] for pair in latency["always"]]) for i in (0, 1))
    return ([phase] + [median(list(rate[arm].values())) for arm in ARMS]
            + [ratio(rate, arm, "passthrough") for arm in ARMS[1:]] + [times])


def print_fs(lines):
    runs = [json.loads(line) for line in lines]
    for size, threads in sorted({(r["size"], r["threads"]) for r in runs}):
        some = [r for r in runs if (r["size"], r["threads"]) == (size, threads)]
        phases = list(dict.fromkeys(p["phase"] for r in some for p in r["phases"]))
        print(f"### {size} B files, {threads} thread{'s' if threads > 1 else ''}: operations a second "
              "(list: entries, stream: MiB)\n")
        table(["", "passthrough", "kvfs everysec", "kvfs always", "everysec : passthrough", "always : passthrough",
               "always, p50 / p99 us"], [fs_row(some, phase) for phase in phases])


def print_kv(lines):
    found = {}
    for line in lines:
        m = re.match(r"(\w+) (\d+) (\d+) (\w+) .*: ([\d.]+) ops/s p50 ([\d.]+) us p99 ([\d.]+) us", line)
        if m:
            arm, turn, threads, op = m[1], int(m[2]), m[3], m[4]
            found.setdefault((op, threads), {}).setdefault(arm, {})[turn] = [float(x) for x in m.groups()[4:]]
    if not found:
        return
    rows = []
    for (op, threads), arms in found.items():
        columns = {arm: list(zip(*arms.get(arm, {}).values())) for arm in ARMS[1:]}
        rates = {arm: {turn: v[0] for turn, v in arms.get(arm, {}).items()} for arm in ARMS[1:]}
        rows.append([f"{op.upper()}, {threads} client{'s' if threads != '1' else ''}"]
                    + [median(columns[arm][0]) if columns[arm] else "fails" for arm in ARMS[1:]]
                    + [ratio(rates, "always", "everysec")]
                    + [" / ".join(median(columns[arm][i]) for i in (1, 2)) if columns[arm] else "-"
                       for arm in ARMS[1:]])
    print("### HTTP, 100 B values at one node: requests a second\n")
    table(["", "everysec", "always", "always : everysec", "everysec, p50 / p99 us", "always, p50 / p99 us"], rows)


if len(sys.argv) != 3:
    sys.exit(__doc__)
with open(sys.argv[1], encoding="utf-8") as results, open(sys.argv[2], encoding="utf-8") as kv:
    print_fs(results)
    print_kv(kv)
