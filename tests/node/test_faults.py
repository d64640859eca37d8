"""test_faults.py - clients at work while nodes are killed, frozen and restarted: the history of each key is
linearizable.

FAULTS_SECONDS=60 makes it longer; FAULTS_SEED repeats the choices of clients and faults (not the timing).
"""
import http.client
import os
import random
import sys
import threading
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from kvtest import Claims, Cluster, connect, eq, request, wait_until  # noqa: E402

SECONDS = float(os.environ.get("FAULTS_SECONDS", "10"))
SEED = int(os.environ.get("FAULTS_SEED", str(random.randrange(1 << 30))))
KEYS = [f"key-{i}" for i in range(6)]
N_CLIENTS = 6
NEVER = float("inf")
LARGE = b"." * 100_000  # a value that is a file of its own at the replicas

# A value is tokens, each unique and ended by ";": "p7;a9;a12;" was put by operation 7, then appended to by 9 and 12.


class Op:
    """One operation on one key. value: what a read saw, None: absent. old: what If-Match asked for."""

    def __init__(self, kind, token=None, old=None):
        self.kind, self.token, self.old = kind, token, old
        self.start, self.end, self.out, self.value = time.monotonic(), NEVER, "unknown", None

    def __repr__(self):
        end = "never" if self.end == NEVER else f"{self.end:.6f}"
        return f"{self.start:.6f}..{end} {self.kind} {self.token} old={self.old} {self.out} {self.value}"


# --- the judgement --------------------------------------------------------------------------------


def step(op, value):
    """What this operation, done at once on this value, leaves: (True, value after it); (False, _): not as it went."""
    if op.kind == "get":
        return op.value == value, value
    possible = {
        "put": True,
        "append": True,
        "create": value is None,
        "match": op.old == value,
        "delete": value is not None,
    }[op.kind]
    if op.out == "failed":
        # If-Match names a version, and versions also change where the value does not: a refusal proves nothing.
        return not possible or op.kind == "match", value
    if not possible:
        return False, value
    return True, {"append": (value or ()) + (op.token,), "delete": None}.get(op.kind, (op.token,))


def seen_by(ops):
    """Of each token, when the first read that saw it had ended."""
    seen = {}
    for op in ops:
        for token in (op.value or ()) if op.kind == "get" else (op.old or ()):
            seen[token] = min(seen.get(token, NEVER), op.end if op.kind == "get" else op.start)
    return seen


def judged(ops):
    """The operations to put in order, and when each hidden write began.

    A write whose outcome is unknown and whose token nobody saw may have been there for a while, or never. All it can
    have made is that an absent key was there, for a delete that found one or a create that was refused.
    """
    seen = seen_by(ops)
    kept, hidden = [], []
    for op in ops:
        if op.out == "none" or (op.kind == "get" and op.out != "ok"):
            continue
        if op.out == "unknown" and op.kind != "delete":
            if op.token not in seen:
                if op.kind != "match":  # that one needs a value, and leaves one
                    hidden.append(op.start)
                continue
            op.out, op.end = "ok", seen[op.token]
        kept.append(op)
    return sorted(kept, key=lambda op: op.start), sorted(hidden)


HIDDEN = ("a write that nobody saw",)


def steps(op, value, used, hidden):
    """What may be after op, done at once on this value: pairs (value, hidden writes used)."""
    fits, after = step(op, value)
    after = [(after, used)] * fits + [(value, used)] * (op.out == "unknown")
    if not fits and value is None and (op.kind, op.out) in (("delete", "ok"), ("create", "failed")):
        # Any that had begun does, and using the latest leaves the most for others.
        began = [i for i, start in enumerate(hidden) if start <= op.end and i not in used]
        if began:
            after.append((step(op, HIDDEN)[1], used | {began[-1]}))
    return after


def linearizable(ops, hidden=()):
    """Wing and Gong's search, depth first, over (operations done, value, hidden writes used); both from judged()."""
    n = len(ops)
    first = (0, frozenset(), None, frozenset())  # all below the number are done, and these above it
    stack, known = [first], {first}
    furthest = 0
    while stack:
        low, done, value, used = stack.pop()
        furthest = max(furthest, low)
        ahead, limit = [], NEVER
        for i in range(low, n):
            if ops[i].start > limit:
                break
            if i not in done:
                ahead.append(i)
                limit = min(limit, ops[i].end)
        if all(ops[i].out == "unknown" for i in ahead) and (not ahead or ahead[-1] == n - 1):
            return True, n
        for i in reversed(ahead):
            if ops[i].start > limit:
                continue
            for v, u in steps(ops[i], value, used, hidden):
                l, d = low, done | {i}
                while l in d:
                    d, l = d - {l}, l + 1
                if (l, d, v, u) not in known:
                    known.add((l, d, v, u))
                    stack.append((l, d, v, u))
    return False, furthest


def judge_of_the_judge():
    """It must be able to say no."""

    def op(start, end, kind, token=None, value=None, out="ok", old=None):
        o = Op(kind, token, old)
        o.start, o.end, o.value, o.out = start, end, value, out
        return o

    def verdict(*ops):
        return linearizable(*judged(ops))[0]

    put = op(0, 1, "put", "a")
    assert verdict(put, op(2, 3, "get", value=("a",)))
    assert not verdict(put, op(2, 3, "get", value=None)), "a lost write"
    assert not verdict(op(0, 9, "put", "a"), op(1, 2, "get", value=("a",)), op(3, 4, "get", value=None)), "back in time"
    assert not verdict(put, op(2, 3, "append", "b"), op(4, 5, "get", value=("a", "b", "b"))), "twice"
    assert not verdict(put, op(2, 3, "append", "b"), op(2, 3, "match", "c", old=("a",)),
                       op(4, 5, "get", value=("c",)), op(6, 7, "get", value=("a", "b"))), "an overwritten append"
    assert not verdict(put, op(2, 3, "match", "b", old=("a",)), op(2, 3, "match", "c", old=("a",))), "two winners"
    assert not verdict(op(0, 1, "create", "a"), op(0, 1, "create", "b")), "two creators"
    assert verdict(put, op(2, NEVER, "append", "b", out="unknown"), op(8, 9, "get", value=("a", "b")))
    assert verdict(put, op(2, NEVER, "delete", out="unknown"), op(8, 9, "get", value=None))
    assert not verdict(put, op(2, 3, "append", "b", out="none"), op(8, 9, "get", value=("a", "b"))), "a certain nothing"
    gone, hidden = [put, op(2, 3, "delete")], op(4, NEVER, "append", "b", out="unknown")
    assert verdict(*gone, hidden, op(6, 7, "delete")), "the second removed what nobody saw"
    assert verdict(*gone, hidden, op(6, 7, "create", "c", out="failed"), op(8, 9, "delete"))
    assert not verdict(*gone, hidden, op(6, 7, "delete"), op(8, 9, "delete")), "and only once"
    assert not verdict(*gone, op(6, 7, "delete"), op(8, NEVER, "put", "b", out="unknown")), "not before it began"
    assert not verdict(*gone, op(4, NEVER, "match", "b", out="unknown", old=("a",)), op(6, 7, "delete"))


# --- clients --------------------------------------------------------------------------------------


def tokens_of(body):
    return tuple(t.strip(".") for t in body.decode().split(";")[:-1])


class Client(threading.Thread):
    def __init__(self, c, number, histories, stop):
        super().__init__()
        self.c, self.number, self.histories, self.stopped = c, number, histories, stop
        self.rng = random.Random(SEED * 100 + number)
        self.conns, self.tags, self.serial, self.error = {}, {}, 0, None

    def run(self):
        try:
            while not self.stopped.is_set():
                self.once()
        except BaseException as e:
            self.error = e
        finally:
            for conn in self.conns.values():
                conn.close()

    def call(self, op, node, method, path, body=None, headers=None):
        """An answer, or None where none came: the outcome of a write is unknown then."""
        try:
            conn = self.conns.pop(node, None)
            if conn is None:
                op.out = "none"  # until something can have been sent
                conn = connect(self.c.port(node), timeout=8)
                op.out = "unknown"
            a = request(0, method, path, body, headers, conn=conn)
            self.conns[node] = conn
            return a
        except (OSError, http.client.HTTPException):
            return None

    def once(self):
        key, node = self.rng.choice(KEYS), self.rng.choice(list(self.c.nodes()))
        kind = self.rng.choices(
            ["get", "put", "append", "create", "match", "delete"], [40, 12, 24, 8, 12, 4 if key < "key-3" else 0]
        )[0]
        if kind == "match" and key not in self.tags:
            kind = "get"
        self.serial += 1
        token = f"{kind[0]}{self.number}.{self.serial}"
        tag, old = self.tags.get(key, (None, None)) if kind == "match" else (None, None)
        op = Op(kind, None if kind in ("get", "delete") else token, old)
        self.histories[key].append(op)
        body = None if op.token is None else token.encode() + (LARGE if self.rng.random() < 0.03 else b"") + b";"
        method, path, headers = {
            "get": ("GET", "", None),
            "put": ("PUT", "", None),
            "append": ("POST", "?append", None),
            "create": ("PUT", "", {"If-None-Match": "*"}),
            "match": ("PUT", "", {"If-Match": tag}),
            "delete": ("DELETE", "", None),
        }[kind]
        a = self.call(op, node, method, f"/kv/{key}{path}", body, headers)
        end = time.monotonic()
        if a is None:
            self.stopped.wait(0.05)
            return
        self.note(op, key, a)
        if op.out in ("ok", "failed"):
            op.end = end

    def note(self, op, key, a):
        if a.status == 503:
            detail = a.json()["detail"]
            if detail.startswith("nothing was stored"):
                op.out = "none"
        elif op.kind == "get":
            assert a.status in (200, 404), a
            op.out, op.value = "ok", tokens_of(a.body) if a.status == 200 else None
            if a.status == 200:
                self.tags[key] = (a.headers["ETag"], op.value)
        elif a.status == 412 or (op.kind == "delete" and a.status == 404):
            assert op.kind in ("create", "match", "delete"), a
            op.out = "failed"
        else:
            assert a.status in (200, 201, 204), a
            op.out = "ok"


# --- trouble --------------------------------------------------------------------------------------


def one_trouble(c, rng, stop):
    """One node is away for a while, in some way; then all are back."""
    node = rng.choice(list(c.nodes()))
    how = rng.choice(["kill", "kill", "freeze", "stop", "blink"])
    if how == "freeze":
        c.sigstop(node)
        stop.wait(rng.uniform(0.1, 2.5))
        c.sigcont(node)
    elif how == "stop":
        eq(c.stop(node), [0], "the exit code")
        c.start(node, wait=False)
    else:
        c.kill9(node)
        stop.wait(0 if how == "blink" else rng.uniform(0.1, 1.5))
        c.start(node, wait=False)
    c.wait_ready(node)
    stop.wait(rng.uniform(0, 0.3))
    return how


def run(c):
    rng, stop = random.Random(SEED), threading.Event()
    histories = {k: [] for k in KEYS}
    clients = [Client(c, i, histories, stop) for i in range(N_CLIENTS)]
    troubles = []
    for cl in clients:
        cl.start()
    try:
        end = time.monotonic() + SECONDS
        while time.monotonic() < end and not any(cl.error for cl in clients):
            troubles.append(one_trouble(c, rng, stop))
    finally:
        stop.set()
        for cl in clients:
            cl.join()
    for cl in clients:
        if cl.error:
            raise cl.error
    return histories, {how: troubles.count(how) for how in sorted(set(troubles))}


def last_reads(c, histories):
    """What all nodes say in the end belongs to the history, too."""
    for key in KEYS:
        for node in c.nodes():
            op = Op("get")
            a = wait_until(lambda: (a := c.http("GET", f"/kv/{key}", node=node)).status != 503 and a, 20, "a last read")
            op.end, op.out = time.monotonic(), "ok"
            op.value = tokens_of(a.body) if a.status == 200 else None
            histories[key].append(op)


def verdict(key, ops):
    everything = sorted(ops, key=lambda op: op.start)
    ops, hidden = judged(ops)
    good, furthest = linearizable(ops, hidden)
    if not good:
        path = f"/tmp/kvtest-faults-{os.getpid()}-{key}.txt"
        with open(path, "w", encoding="utf-8") as f:
            f.writelines(f"{'>>> ' if op is ops[furthest] else ''}{op}\n" for op in everything)
        raise AssertionError(f"seed {SEED}: operations of {key} up to number {furthest} fit, no further: {path}")


with Claims() as t:
    judge_of_the_judge()
    with Cluster(base_port=18260) as c:
        print(f"# seed {SEED}", flush=True)
        with t.claim("six clients work on while one node at a time is killed, frozen or restarted"):
            histories, troubles = run(c)
            c.wait_alive()
            last_reads(c, histories)
            ops = [op for h in histories.values() for op in h]
            outs = {o: sum(op.out == o for op in ops) for o in ("ok", "failed", "none", "unknown")}
            print(f"# {len(ops)} operations: {outs}; {sum(troubles.values())} troubles: {troubles}", flush=True)
            assert outs["ok"] > 100 and sum(troubles.values()) > 1, "a run that did nothing proves nothing"
        for key in KEYS:
            with t.claim(f"the history of {key} is linearizable"):
                verdict(key, histories[key])
