"""test_linear.py - the judge of fault runs knows good histories from bad ones."""
import itertools
import os
import pathlib
import random
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
from kvtest import Claims, eq
from linear import NEVER, Op, judge

SEED = int(os.environ.get("SEED", random.randrange(1 << 30)))


def op(start, end, kind, token=None, value=None, out="ok", old=None):
    o = Op(kind, token, old, start)
    o.end, o.value, o.out = (NEVER if out == "unknown" else end), value, out
    return o


def good(*ops):
    eq(judge(list(ops)).good, True)


def bad(*ops):
    eq(judge(list(ops)).good, False)


PUT = op(0, 1, "put", "a")
GONE = [PUT, op(2, 3, "delete")]


# --- histories made up: from a register that is one, and from broken ones ---------------------------


class Register:
    """A register whose operations happen at one moment; `flaw` breaks one rule."""

    def __init__(self, rng, flaw=None):
        self.rng, self.flaw = rng, flaw
        self.value, self.before, self.pending = None, None, []

    def do(self, o):
        """Carries o out; what it answers."""
        old, flawed = self.value, self.rng.random() < 0.2
        if o.kind == "get":
            o.value = self.before if self.flaw == "stale" and flawed else self.value
            return "ok"
        possible = {"create": old is None, "match": o.old == old, "delete": old is not None}.get(o.kind, True)
        if not possible and not (self.flaw == "no condition" and flawed):
            return "failed"
        if self.flaw == "lost" and flawed:
            return "ok"
        self.before = old
        new = () if o.token is None else (o.token,)
        self.value = None if o.kind == "delete" else (old or ()) + new if o.kind == "append" else new
        if self.flaw == "twice" and flawed and o.kind == "append":
            self.value += new
        return "ok"


def made_up(rng, n_ops=60, n_clients=4, flaw=None):
    """Clients at work on one register; some operations have no known outcome, and happen later or never."""
    r, now, serial, ops = Register(rng, flaw), 0.0, itertools.count(), []
    running = []  # [when it happens, when its client hears, op, whether it is known]
    saw = []
    while len(ops) < n_ops or running:
        now += rng.random()
        for entry in sorted(running, key=lambda e: e[0]):
            if entry[0] <= now and entry[0] >= 0:
                answer = r.do(entry[2])
                entry[0] = -1
                if entry[3]:
                    entry[2].out = answer
                    saw.append(entry[2].value if entry[2].kind == "get" else None)
        for entry in [e for e in running if e[0] < 0 and e[1] <= now]:
            running.remove(entry)
            if entry[3]:
                entry[2].end = now
        for entry in [e for e in running if not e[3] and rng.random() < 0.02]:
            running.remove(entry)  # never happens
        if len(ops) < n_ops and sum(e[3] for e in running) < n_clients:
            kind = rng.choice(["get", "get", "get", "put", "append", "append", "create", "match", "delete"])
            old = rng.choice(saw) if kind == "match" and saw else None
            kind = "get" if kind == "match" and old is None else kind
            empty = kind == "create" and rng.random() < 0.5
            o = Op(kind, None if kind in ("get", "delete") or empty else f"t{next(serial)}", old, now)
            known = kind == "get" or rng.random() < 0.9
            happens = now + rng.random() * (3 if known else 20)
            running.append([happens, happens + rng.random() * 3, o, known])
            ops.append(o)
    if flaw == "certain":  # one that is in a value was said to be surely not
        seen = {t for o in ops if o.kind == "get" for t in o.value or ()}
        told = [o for o in ops if o.token in seen and o.token is not None]
        if told:
            rng.choice(told).out = "none"
    return ops


with Claims() as t:
    with t.claim("a read after a write sees it"):
        good(PUT, op(2, 3, "get", value=("a",)))
        bad(PUT, op(2, 3, "get", value=None))
        good(op(0, 9, "put", "a"), op(1, 2, "get", value=None), op(3, 4, "get", value=("a",)))
        bad(op(0, 9, "put", "a"), op(1, 2, "get", value=("a",)), op(3, 4, "get", value=None))
        bad(PUT, op(2, 3, "get", value=("b",)))
        bad(PUT, op(2, 3, "put", "b"), op(4, 5, "get", value=("a",)))

    with t.claim("an append is there once, behind what was there"):
        good(op(0, 1, "append", "a"), op(2, 3, "append", "b"), op(4, 5, "get", value=("a", "b")))
        bad(PUT, op(2, 3, "append", "b"), op(4, 5, "get", value=("a", "b", "b")))
        bad(PUT, op(2, 3, "append", "b"), op(4, 5, "get", value=("b", "a")))
        bad(PUT, op(2, 3, "append", "b"), op(2, 3, "match", "c", old=("a",)),
            op(4, 5, "get", value=("c",)), op(6, 7, "get", value=("a", "b")))

    with t.claim("a condition has one winner, and a loser a reason"):
        bad(PUT, op(2, 3, "match", "b", old=("a",)), op(2, 3, "match", "c", old=("a",)))
        bad(op(0, 1, "create", "a"), op(0, 1, "create", "b"))
        bad(op(0, 1, "create", "a", out="failed"))
        good(op(0, 9, "put", "a"), op(1, 2, "create", "b", out="failed"))
        bad(op(0, 1, "delete"))
        bad(*GONE, op(4, 5, "delete"))
        good(*GONE, op(4, 5, "delete", out="failed"), op(6, 7, "create", "b"))
        bad(*GONE, op(4, 5, "get", value=("a",)))

    with t.claim("an empty creation is told from an absent key"):
        good(op(0, 1, "create"), op(2, 3, "get", value=()), op(4, 5, "append", "b"), op(6, 7, "get", value=("b",)))
        bad(op(0, 1, "create"), op(2, 3, "get", value=None))
        good(op(0, 1, "create", out="unknown"), op(2, 3, "get", value=None), op(4, 5, "get", value=()))
        bad(op(0, 1, "create", out="unknown"), op(2, 3, "delete"), op(4, 5, "get", value=()))
        bad(op(4, 5, "create", out="unknown"), op(2, 3, "get", value=()))

    with t.claim("what has no known outcome may happen late, once, or never"):
        lost = op(2, 3, "append", "b", out="unknown")
        good(PUT, lost, op(8, 9, "get", value=("a", "b")))
        good(PUT, lost, op(4, 5, "get", value=("a",)), op(8, 9, "get", value=("a", "b")))
        bad(PUT, lost, op(4, 5, "get", value=("a", "b")), op(8, 9, "get", value=("a",)))
        bad(PUT, op(4, 5, "append", "b", out="unknown"), op(2, 3, "get", value=("a", "b")))
        good(PUT, op(2, 3, "delete", out="unknown"), op(4, 5, "get", value=("a",)), op(8, 9, "get", value=None))
        bad(PUT, op(2, 3, "delete", out="unknown"), op(4, 5, "get", value=None), op(8, 9, "get", value=("a",)))
        good(PUT, op(2, 3, "delete", out="unknown"), op(4, 5, "put", "b"), op(8, 9, "get", value=None))
        bad(PUT, op(2, 3, "delete", out="unknown"), op(3, 4, "delete"), op(5, 6, "put", "b"), op(7, 8, "delete"),
            op(9, 10, "delete"))

    with t.claim("what was surely not done is nowhere"):
        bad(PUT, op(2, 3, "append", "b", out="none"), op(8, 9, "get", value=("a", "b")))
        good(PUT, op(2, 3, "append", "b", out="none"), op(8, 9, "get", value=("a",)))

    with t.claim("a write that nobody saw explains one deletion or refused creation, after it began"):
        unseen = op(4, 5, "append", "b", out="unknown")
        good(*GONE, unseen, op(6, 7, "delete"))
        good(*GONE, unseen, op(6, 7, "create", "c", out="failed"), op(8, 9, "delete"))
        bad(*GONE, unseen, op(6, 7, "delete"), op(8, 9, "delete"))
        bad(*GONE, op(6, 7, "delete"), op(8, 9, "put", "b", out="unknown"))
        bad(*GONE, op(4, 5, "match", "b", out="unknown", old=("a",)), op(6, 7, "delete"))

    with t.claim(f"it accepts 300 histories of a register, whatever is late or lost (SEED={SEED})"):
        for i in range(300):
            verdict = judge(made_up(random.Random(SEED + i)))
            assert verdict.good, f"history {SEED + i}: {verdict.why}"

    for flaw in ("stale", "lost", "twice", "no condition", "certain"):
        with t.claim(f"it refuses many histories of a register with a flaw: {flaw}"):
            refused = sum(judge(made_up(random.Random(SEED + i), flaw=flaw)).good is False for i in range(120))
            assert refused >= 32, f"only {refused} of 120"  # half of them show the flaw; this is five deviations below

    # Mostly it takes a few hundredths of a second, one in fifty some seconds.
    with t.claim("300 operations of 12 clients, a tenth of them without outcome, are judged in a minute of processor time"):
        for i in range(3):
            ops = made_up(random.Random(SEED + i), n_ops=300, n_clients=12)
            began = time.process_time()
            assert judge(ops).good
            assert time.process_time() - began < 60, f"history {SEED + i}: {time.process_time() - began:.1f} s"
