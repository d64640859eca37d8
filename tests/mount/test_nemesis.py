"""test_nemesis.py - clients at work, over HTTP and through mounts, while everything happens to their cluster: what they
saw is linearizable, and in the end all replicas agree.

    NEMESIS_SECONDS=3600   how long (12)
    NEMESIS_SEED=7         repeats the choices of clients and faults (not the timing)
    NEMESIS_FAULTS=a,b     only these of: kill restart freeze mount unplug oneway partial clock wipe flip
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
from clients import tokens_of
from kvtest import Claims, eq, wait_until
from linear import Op
from machines import machines
from nemesis import FAULTS, LOSSES, OF_MACHINES, Nemesis
from world import REPAIRS, World

SECONDS = float(os.environ.get("NEMESIS_SECONDS", "12"))
SEED = int(os.environ.get("NEMESIS_SEED", random.randrange(1 << 30)))
N_CLIENTS = int(os.environ.get("NEMESIS_CLIENTS", "3"))
JUDGE_LIMIT_S = 300
CALLS_LIMIT_S = 60
SAME_LIMIT_S = 30


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
    impossible = (set() if apart else OF_MACHINES) | (set() if REPAIRS else LOSSES)
    return [k for k in kinds if k not in impossible]


class Clients:
    """clients.py as a process."""

    def __init__(self, world, judge):
        self.world, self.judge = world, judge
        self.proc = subprocess.Popen([sys.executable, LIB / "clients.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                     text=True)
        self.errors, self.rounds, self.drained, self.summary = [], [], set(), None
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def start(self):
        w = self.world
        self.say(json.dumps({
            "folder": str(w.dir), "seed": SEED, "servers": [(w.host(i), w.port(i)) for i in w.procs],
            "mounts": [{"name": m.path.name, "path": str(m.path), "net": w.net_of_mount(m)} for m in w.mounts],
        }))

    def say(self, line):
        self.proc.stdin.write(f"{line}\n")
        self.proc.stdin.flush()

    def read(self):
        for line in self.proc.stdout:
            told = json.loads(line)
            if "round" in told:
                self.rounds.append((told["round"], told["keys"]))
                self.judge.ask(told["round"])
            if "error" in told:
                self.errors.append(told["error"])
            if "drained" in told:
                self.drained.add(told["drained"])
            if "summary" in told:
                with open(told["summary"], "rb") as f:
                    self.summary = pickle.load(f)

    def shut(self, mount):
        self.drained.discard(mount)
        self.say(f"shut {mount}")

    def drain(self, mount):
        self.say(f"drain {mount}")
        wait_until(lambda: mount in self.drained, CALLS_LIMIT_S, f"calls through {mount} have ended with its process")

    def open(self, mount):
        self.say(f"open {mount}")

    def stop(self):
        self.say("stop")
        eq(self.proc.wait(CALLS_LIMIT_S), 0, "the clients' exit code")
        self.reader.join()

    def close(self):
        self.proc.kill()
        self.proc.wait()


class Run:
    def __init__(self, world, clients, judge, rng, kinds):
        self.world, self.clients, self.judge = world, clients, judge
        self.events = open(world.dir / "events.txt", "w", encoding="utf-8")
        self.nemesis = Nemesis(world, clients, rng, kinds, self.events, brief=SECONDS < 60)
        self.counts, self.later, self.successes = collections.Counter(), {}, []

    def go(self):
        self.clients.start()
        end = time.monotonic() + SECONDS
        try:
            while time.monotonic() < end and not self.judge.bad and not self.clients.errors:
                self.nemesis.once()
        finally:
            self.clients.stop()
            self.counts, self.later, self.successes = (
                self.clients.summary[x] for x in ("counts", "later", "successes"))
        eq(self.clients.errors, [], "what clients say")
        self.nemesis.wait_whole()

    def outcomes(self):
        outs = collections.Counter()
        for (who, _, out), n in self.counts.items():
            outs[f"{who} {out}"] += n
        return dict(sorted(outs.items()))


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
    for path, keys in run.clients.rounds:
        with open(path, "rb") as f:
            histories = pickle.load(f)
        for key in keys:
            op = read_key(run.world, key, rng.choice(list(run.world.nodes())))
            histories[key] += run.later.get(key, []) + [op]
            if op.value is not None:
                there.add(key)
        with open(path, "wb") as f:
            pickle.dump(histories, f)
        run.judge.ask(path)
    return there


def copies_of(world, key):
    """What each replica says of its own copy."""
    found = []
    for node in json.loads(world.http("GET", f"/replicas/{key}").body)["replicas"]:
        found.append(world.replica(int(node["id"].removeprefix("node-")), key))
    return found


def all_the_same(world, keys, there):
    """All replicas of each key hold the same, if need be after a while."""
    seen = {}

    def same(key):
        seen[key] = copies = copies_of(world, key)
        return copies.count(copies[0]) == len(copies) and copies[0][0] == (200 if key in there else 404)

    for key in keys:
        try:
            wait_until(lambda key=key: same(key), SAME_LIMIT_S, "the same")
        except AssertionError:
            raise AssertionError(f"{key}: {[(s, v, len(b)) for s, v, b in seen[key]]}") from None


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
    times = sorted(run.successes)
    for began, healed, faults, lost in run.nemesis.spans:
        away = faults[0].parts - {"net"}
        if len(faults) > 1 or len(away) != 1 or not away <= {run.world.name(i) for i in run.world.nodes()}:
            continue
        if lost is not None and run.world.name(lost) not in away:
            continue  # two of them are
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
    clients = Clients(world, judge)
    stack.callback(clients.close)
    run = Run(world, clients, judge, rng, kinds)

    with t.claim("clients work on, whatever happens"):
        run.go()
        world.wait_alive()
    with t.claim("each key's history is linearizable"):
        judge.verdicts()
    silence, during = longest_silence(run)
    print(f"# {sum(run.counts.values())} operations on {sum(len(keys) for _, keys in run.clients.rounds)} keys: {run.outcomes()}", flush=True)
    print(f"# faults: {dict(run.nemesis.counts)}; longest silence with one node away: {silence:.2f} s ({during}); "
          f"whole again after {[round(s, 1) for s in run.nemesis.recoveries]} s", flush=True)
    with t.claim("it was not for nothing"):
        assert sum(c for (_, _, out), c in run.counts.items() if out == "ok") > 20 * SECONDS
        assert sum(run.nemesis.counts.values()) > SECONDS / 10
    with t.claim("with one node away others answer within 4 seconds"):
        assert silence < 4, f"{silence:.1f} s of silence: {during}"
    with t.claim("what all nodes say in the end is the end of each history: deleted keys stay deleted"):
        there = read_all(run, rng)
        judge.verdicts()
    if REPAIRS:
        with t.claim("every replica of every key, asked one by one, holds the same bytes and version"):
            all_the_same(world, [key for _, keys in clients.rounds for key in keys], there)
    with t.claim("a listing names just the keys that are there"):
        names = [k for k in listed(world, rng.choice(list(world.nodes()))) if not k.startswith("beside-")]
        eq(sorted(names), sorted(there))
    with t.claim("all processes stop with nothing to complain of"):
        eq([m.stop() for m in world.mounts], [0] * len(world.mounts), "mounts")
        eq(world.stop(), [0] * (n + 1), "nodes and the gateway")
    world.keep = world.keep_always or t.failed > 0
