"""test_nemesis.py - clients at work, over HTTP and through mounts, while everything happens to their cluster: what they
saw is linearizable, and in the end all replicas agree.

    NEMESIS_SECONDS=3600   how long (12)
    NEMESIS_SEED=7         repeats the choices of clients and faults (not the timing)
    NEMESIS_FAULTS=a,b     only these of: kill restart freeze mount unplug oneway partial clock
    NEMESIS_NODES=5        how many nodes (drawn: 3 to 5), each with NEMESIS_CLIENTS=3 client machines to serve

Each node and each client machine has a network of its own, where that is possible. What a failed run leaves is kept.
"""
import collections
import contextlib
import json
import os
import pathlib
import pickle
import random
import subprocess
import sys
import threading
import time

sys.dont_write_bytecode = True
LIB = pathlib.Path(__file__).resolve().parents[1] / "lib"
sys.path.insert(0, str(LIB))
from clients import Book, FileClient, HttpClient, tokens_of
from kvtest import Claims, eq, wait_until
from linear import Op
from machines import machines
from nemesis import FAULTS, OF_MACHINES, Nemesis
from world import World

SECONDS = float(os.environ.get("NEMESIS_SECONDS", "12"))
SEED = int(os.environ.get("NEMESIS_SEED", random.randrange(1 << 30)))
N_CLIENTS = int(os.environ.get("NEMESIS_CLIENTS", "3"))
JUDGE_LIMIT_S = 300


class Judge:
    """linear.py as a process: this one is busy being the clients."""

    def __init__(self):
        self.proc = subprocess.Popen(["nice", "-n", "5", sys.executable, LIB / "linear.py"], stdin=subprocess.PIPE,
                                     stdout=subprocess.PIPE, text=True)
        self.lock = threading.Lock()
        self.n_asked, self.n_told, self.bad = 0, 0, []
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def ask(self, path):
        with self.lock:
            self.n_asked += 1
            self.proc.stdin.write(f"{path}\n")
            self.proc.stdin.flush()

    def read(self):
        for line in self.proc.stdout:
            told = json.loads(line)
            self.bad += told["bad"]
            self.n_told += 1

    def verdicts(self):
        wait_until(lambda: self.n_told == self.n_asked or self.proc.poll() is not None, JUDGE_LIMIT_S, "the judge is done")
        eq(self.n_told, self.n_asked, "histories judged")
        eq(self.bad, [], "histories that cannot be")

    def close(self):
        self.proc.stdin.close()
        self.proc.terminate()
        self.proc.wait()


def wanted_faults(apart):
    kinds = os.environ.get("NEMESIS_FAULTS", ",".join(sorted(FAULTS))).split(",")
    unknown = [k for k in kinds if k not in FAULTS]
    if unknown:
        sys.exit(f"NEMESIS_FAULTS: there is no {', '.join(unknown)}, but {', '.join(FAULTS)}")
    return [k for k in kinds if apart or k not in OF_MACHINES]


class Run:
    def __init__(self, world, judge, rng, kinds):
        self.world, self.judge = world, judge
        self.book = Book(world.dir, judge.ask)
        self.stop = threading.Event()
        self.events = open(world.dir / "events.txt", "w", encoding="utf-8")
        self.nemesis = Nemesis(world, rng, kinds, self.events, brief=SECONDS < 60)
        self.clients = []
        for k, mount in enumerate(world.mounts, 1):
            machine = f"client-{k}"
            for j in "ab":
                self.clients.append(HttpClient(world, self.book, f"h{k}{j}", machine, SEED, self.stop))
                self.clients.append(FileClient(world, self.book, f"f{k}{j}", machine, SEED, self.stop, mount))

    def trouble(self):
        return self.judge.bad or any(c.error for c in self.clients)

    def go(self):
        for c in self.clients:
            c.start()
        try:
            end = time.monotonic() + SECONDS
            while time.monotonic() < end and not self.trouble():
                self.nemesis.once(self.stop)
        finally:
            self.stop.set()
            for c in self.clients:
                c.join()
            self.book.finish()
            self.events.close()
        for c in self.clients:
            if c.error:
                raise c.error

    def outcomes(self):
        outs = collections.Counter()
        for (who, _, out), n in self.book.counts.items():
            outs[f"{who} {out}"] += n
        return dict(sorted(outs.items()))

    def keys(self):
        return [key for _, keys in self.book.closed for key in keys]


def read_key(world, key, node):
    """What a node says of a key, once it can: an operation as any."""
    op = Op("get", start=time.monotonic(), who=f"node-{node}")
    a = wait_until(lambda: (a := world.http("GET", f"/kv/{key}", node=node)).status != 503 and a, 20, f"a last read of {key}")
    assert a.status in (200, 404), f"{key}: {a}"
    op.end, op.out, op.value = time.monotonic(), "ok", tokens_of(a.body) if a.status == 200 else None
    return op


def read_all(run, rng):
    """Reads every key once more through some node, and has all histories judged again, with all reads since."""
    there = set()
    for path, keys in run.book.closed:
        with open(path, "rb") as f:
            histories = pickle.load(f)
        for key in keys:
            op = read_key(run.world, key, rng.choice(list(run.world.nodes())))
            histories[key] += run.book.later[key] + [op]
            if op.value is not None:
                there.add(key)
        with open(path, "wb") as f:
            pickle.dump(histories, f)
        run.judge.ask(path)
    return there


def listed(world, node):
    names, after = [], ""
    while after is not None:
        page = world.http("GET", f"/kv?limit=1000&start_after={after}", node=node).json()
        names += [k["key"] for k in page["keys"]]
        after = page.get("next")
    return names


def longest_silence(run):
    """While one node was away and nothing else happened: how long nobody was answered, at worst, and in which fault."""
    worst = (0, None)
    times = sorted(run.book.successes)
    for began, healed, faults in run.nemesis.spans:
        if len(faults) > 1 or not any(p.startswith("node") for p in faults[0].parts):
            continue
        within = [began, *(t for t in times if began < t < healed), healed]
        worst = max([worst, *((b - a, str(faults[0])) for a, b in zip(within, within[1:]))], key=lambda w: w[0])
    return worst


with Claims(take_turns=False) as t, contextlib.ExitStack() as stack:
    rng = random.Random(SEED)
    n = int(os.environ.get("NEMESIS_NODES", rng.choice((3, 3, 4, 5))))
    net, why_not = machines(World.machine_names(n, N_CLIENTS))
    if not net.apart:
        t.take_turns()
    kinds = wanted_faults(net.apart)
    print(f"# seed {SEED}: {n} nodes; {' '.join(kinds)}" + (f"; on one machine: {why_not}" if why_not else ""), flush=True)
    judge = Judge()
    stack.callback(judge.close)
    world = stack.enter_context(World(net, n, N_CLIENTS, base_port=20000))
    run = Run(world, judge, rng, kinds)

    with t.claim(f"{len(run.clients)} clients work on, whatever happens"):
        run.go()
        world.wait_alive()
    with t.claim("each key's history is linearizable"):
        judge.verdicts()
    silence, during = longest_silence(run)
    print(f"# {sum(run.book.counts.values())} operations on {len(run.keys())} keys: {run.outcomes()}", flush=True)
    print(f"# faults: {dict(run.nemesis.counts)}; longest silence with one node away: {silence:.2f} s ({during})", flush=True)
    with t.claim("it was not for nothing"):
        assert sum(c for (_, _, out), c in run.book.counts.items() if out == "ok") > 20 * SECONDS
        assert sum(run.nemesis.counts.values()) > SECONDS / 10
    with t.claim("with one node away others answer within 4 seconds"):
        assert silence < 4, f"{silence:.1f} s of silence: {during}"
    with t.claim("what all nodes say in the end is the end of each history: deleted keys stay deleted"):
        there = read_all(run, rng)
        judge.verdicts()
    with t.claim("a listing names just the keys that are there"):
        names = [k for k in listed(world, rng.choice(list(world.nodes()))) if not k.startswith("beside-")]
        eq(sorted(names), sorted(there))
    world.keep = world.keep_always or t.failed > 0
