"""clients.py - clients of a fault run: they work on keys over HTTP and through mounts, and write down what they saw.

Keys last for one round of a few seconds, so that each history stays short; the next round has fresh ones. Of earlier
rounds keys are only read.

A program, for whoever has files of a mount open must not fork: what a child closes before it becomes another program is
flushed, half written or not. Its first line on stdin says what to do, in JSON; then come commands:
    shut NAME, drain NAME, open NAME    no operation begins through that mount; none is under way (answered); go on
    stop                                all clients end
It tells, a line of JSON each: {"round": path, "keys": [...]} where a round has ended, {"drained": name}, {"error": ...},
and at the end {"summary": path}.
"""
import collections
import contextlib
import errno
import http.client
import json
import os
import pathlib
import pickle
import random
import socket
import struct
import sys
import threading
import time

from kvtest import connect, request
from linear import Op
from machines import enter_net

# What a key is used for, and how often. What is lost in a busy key may be overwritten before anybody can notice; in a
# log nothing ever is.
USES = {"busy": 4, "log": 3, "quiet": 1}
KEYS = ["busy", "busy", "busy", "log", "log", "quiet", "quiet"]  # of a round
OPS_PER_ROUND = 1200
ROUND_LIMIT_S = 5
CALL_LIMIT_S = 7  # a bit more than the product's own
LARGE = (100_000, 100_000, 3 << 20)  # sizes of values that are files of their own at the replicas; not 3 MiB in logs
P_LARGE = float(os.environ.get("NEMESIS_LARGE", "0.02"))  # how many values are
P_SLOW = 0.05  # how many files are open for a while
P_OLD = 0.04  # how many operations read a key of an earlier round

KINDS = {"get": 38, "put": 12, "append": 22, "create": 8, "match": 12, "delete": 8}
LOG_KINDS = {"get": 60, "append": 40}
FILE_KINDS = {"get": 38, "put": 14, "append": 22, "create": 8, "replace": 8, "delete": 8}


# --- values ---------------------------------------------------------------------------------------


def token_bytes(token, size):
    """What a token is written as. All of it can be told from its beginning."""
    filler = (token.encode() + b".") * (size // (len(token) + 1) + 1)
    return b"%s:%d:%s;" % (token.encode(), size, filler[:size])


def tokens_of(data):
    """A value as its tokens; bytes that nobody can have written raise ValueError."""
    tokens, at = [], 0
    while at < len(data):
        colon = data.index(b":", at)
        second = data.index(b":", colon + 1)
        token, size = data[at:colon].decode(), int(data[colon + 1:second])
        want = token_bytes(token, size)
        if data[at:at + len(want)] != want:
            wrong = next((i for i, (a, b) in enumerate(zip(data[at:], want)) if a != b), len(data) - at)
            raise ValueError(f"of {token}, at {at} of {len(data)} bytes, byte {wrong} of {len(want)} is wrong or missing: "
                             f"{bytes(data[at + wrong:at + wrong + 20])}")
        tokens.append(token)
        at += len(want)
    return tuple(tokens)


# --- rounds ---------------------------------------------------------------------------------------


class Round:
    def __init__(self, number):
        self.number, self.began = number, time.monotonic()
        self.ops = {f"r{number}-{use}{k}": [] for k, use in enumerate(KEYS)}
        self.weights = [USES[use] for use in KEYS]
        self.users, self.n_ops, self.over = 0, 0, False


def is_log(key):
    return "-log" in key


class Book:
    """The rounds: the present one, and those that are over, on disk. tell(what): to who started us."""

    def __init__(self, folder, tell):
        self.folder, self.tell = folder, tell
        self.lock = threading.Lock()
        self.now = Round(0)
        self.waiting = []  # over, but not all of their operations are
        self.closed = []  # (path, keys)
        self.later = collections.defaultdict(list)  # key: reads after its round was closed
        self.counts = collections.Counter()  # (who, kind, out)
        self.successes = []  # when each operation that had an answer ended

    def begin(self):
        """The round to work in, until end()."""
        with self.lock:
            r = self.now
            if r.n_ops >= OPS_PER_ROUND or time.monotonic() - r.began > ROUND_LIMIT_S:
                r.over = True
                self.waiting.append(r)
                self.now = r = Round(r.number + 1)
            r.users += 1
            r.n_ops += 1
            return r

    def end(self, r):
        with self.lock:
            r.users -= 1
            done = [w for w in self.waiting if w.users == 0]
            self.waiting = [w for w in self.waiting if w.users > 0]
        for w in done:
            self.close_round(w)

    def close_round(self, r):
        path = self.folder / f"round-{r.number:05}"
        with open(path, "wb") as f:
            pickle.dump(r.ops, f)
        with self.lock:
            self.closed.append((path, list(r.ops)))
        self.tell(round=str(path), keys=list(r.ops))

    def finish(self):
        """Nobody works any more."""
        for r in [*self.waiting, self.now]:
            self.close_round(r)
        self.waiting = []

    def old_key(self, rng):
        with self.lock:
            return rng.choice(rng.choice(self.closed)[1]) if self.closed else None

    def count(self, who, op):
        now = time.monotonic()
        with self.lock:
            self.counts[who, op.kind, op.out] += 1
            if op.out in ("ok", "failed"):
                self.successes.append(now)


class Gate:
    """Who works through a mount passes it: the mount may be killed, and there must be no mount only while nobody is in.

    One at a time for each key: programs on one machine see each other's unclosed files.
    """

    def __init__(self, path):
        self.path = path
        self.lock = threading.Condition()
        self.is_open, self.n_shut = True, 0
        self.keys = set()

    def enter(self, key):
        """False: not now."""
        with self.lock:
            if not self.is_open or key in self.keys:
                return False
            self.keys.add(key)
            return True

    def leave(self, key):
        with self.lock:
            self.keys.discard(key)
            self.lock.notify_all()

    def shut(self):
        with self.lock:
            self.is_open = False
            self.n_shut += 1

    def drain(self):
        with self.lock:
            self.lock.wait_for(lambda: not self.keys)

    def open(self):
        with self.lock:
            self.is_open = True


# --- clients --------------------------------------------------------------------------------------


class Client(threading.Thread):
    """Works until told to stop; an answer that cannot be ends it with an error. net: of its machine, or None."""

    kinds = KINDS

    def __init__(self, book, name, net, seed, stop):
        super().__init__(name=name)
        self.book, self.net, self.stopped = book, net, stop
        self.rng = random.Random(f"{seed} {name}")
        self.serial = 0

    def run(self):
        try:
            enter_net(self.net)
            while not self.stopped.is_set():
                if self.rng.random() < P_OLD:
                    self.read_old()
                else:
                    self.work()
        except BaseException as e:
            self.book.tell(error=f"{self.name} at {time.monotonic():.6f}: {e!r}")
        finally:
            self.tidy_up()

    def tidy_up(self):
        pass

    def op(self, kind, token=None, old=None):
        return Op(kind, token, old, time.monotonic(), self.name)

    def ended(self, op, out, value=None):
        """It has an answer."""
        op.value, op.out, op.end = value, out, time.monotonic()

    def new_token(self, kind):
        self.serial += 1
        return f"{kind[0]}{self.name}.{self.serial}"

    def new_value(self, op, key):
        rng = self.rng
        large = LARGE[:2] if is_log(key) else LARGE
        return token_bytes(op.token, rng.choice(large) if rng.random() < P_LARGE else rng.choice((0, 0, 0, 5, 300)))

    def work(self):
        r = self.book.begin()
        try:
            key = self.rng.choices(list(r.ops), r.weights)[0]
            kinds = LOG_KINDS if is_log(key) else self.kinds
            kind = self.rng.choices(list(kinds), kinds.values())[0]
            self.once(r.ops[key], key, kind)
        finally:
            self.book.end(r)

    def read_old(self):
        key = self.book.old_key(self.rng)
        if key is not None:
            self.once(self.book.later[key], key, "get")


class HttpClient(Client):
    def __init__(self, servers, *args):
        super().__init__(*args)
        self.servers = servers  # (host, port) of each
        self.conns, self.tags = {}, {}

    def tidy_up(self):
        for conn in self.conns.values():
            conn.close()

    def call(self, op, server, method, path, body=None, headers=None):
        """An answer, or None where none came: the outcome of a write is unknown then."""
        try:
            conn = self.conns.pop(server, None)
            if conn is None:
                op.out = "none"  # until something can have been sent
                conn = connect(server[1], CALL_LIMIT_S, server[0])
                # What was given up is not to be sent later, when a cut link is back: the run may have ended by then.
                conn.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                op.out = "unknown"
            a = request(0, method, path, body, headers, conn=conn)
            self.conns[server] = conn
            return a
        except (OSError, http.client.HTTPException):
            if conn is not None:
                conn.close()
            return None

    def once(self, history, key, kind):
        server = self.rng.choice(self.servers)
        tag, old = self.tags.get(key, (None, None))
        if kind == "match" and tag is None:
            kind = "get"
        op = self.op(kind, None if kind in ("get", "delete") else self.new_token(kind), old if kind == "match" else None)
        history.append(op)
        body = None if op.token is None else self.new_value(op, key)
        method, query, headers = {
            "get": ("GET", "", None),
            "put": ("PUT", "", None),
            "append": ("POST", "?append", None),
            "create": ("PUT", "", {"If-None-Match": "*"}),
            "match": ("PUT", "", {"If-Match": tag}),
            "delete": ("DELETE", "", None),
        }[kind]
        a = self.call(op, server, method, f"/kv/{key}{query}", body, headers)
        if a is not None:
            self.note(op, key, a)
        self.book.count("http", op)
        if a is None:
            self.stopped.wait(0.05)

    def note(self, op, key, a):
        if a.status == 503:
            op.out = "none" if a.json()["detail"].startswith("nothing was stored") else "unknown"
        elif op.kind == "get":
            if a.status not in (200, 404):
                raise AssertionError(f"{op}: {a}")
            self.ended(op, "ok", tokens_of(a.body) if a.status == 200 else None)
            if a.status == 200:
                self.tags = dict(list(self.tags.items())[-len(KEYS):])
                self.tags[key] = (a.headers["ETag"], op.value)
        elif a.status == 412 or (op.kind == "delete" and a.status == 404):
            if op.kind not in ("create", "match", "delete"):
                raise AssertionError(f"{op}: {a}")
            self.ended(op, "failed")
        elif a.status in (200, 201, 204):
            self.ended(op, "ok")
        else:
            raise AssertionError(f"{op}: {a}")


# What a mount may answer when there is trouble: it tells nothing of the key.
TROUBLE = (errno.EHOSTDOWN, errno.ENOTCONN, errno.ECONNABORTED, errno.ESTALE, errno.EINTR)


class FileClient(Client):
    """Reads and writes whole files. Each operation is one in the cluster, made when the file is closed; but creating
    (O_EXCL) is done by open, and leaves an empty file to be overwritten."""

    kinds = FILE_KINDS

    def __init__(self, gate, *args):
        super().__init__(*args)
        self.gate = gate

    def once(self, history, key, kind):
        if not self.gate.enter(key):
            self.stopped.wait(0.002)
            return
        try:
            getattr(self, kind)(history, self.gate.path / key)
        finally:
            self.gate.leave(key)

    def begin(self, history, kind, out, token=None):
        """out: what an error tells of the operation, until that is changed."""
        op = self.op(kind, token)
        op.out = out
        history.append(op)
        return op

    @contextlib.contextmanager
    def doing(self, op, **answers):
        """The block is the operation; answers: what errors say of the key."""
        n_shut = self.gate.n_shut
        try:
            yield
        except OSError as e:
            if (answer := answers.get(errno.errorcode[e.errno])) is not None:
                self.ended(op, answer)
            elif e.errno in TROUBLE or (e.errno == errno.EIO and self.gate.n_shut != n_shut):
                self.stopped.wait(0.05 if e.errno == errno.ENOTCONN else 0)
            else:
                raise AssertionError(f"{op}: {e}") from e
        self.book.count("file", op)

    def get(self, history, path):
        op = self.begin(history, "get", "none")
        with self.doing(op, ENOENT="ok"):
            with open(path, "rb", buffering=0) as f:
                data = f.readall()
            self.ended(op, "ok", tokens_of(data))

    def write(self, op, key, fd):
        """What is written is stored when it is closed."""
        data = memoryview(self.new_value(op, key))
        try:
            while data:
                data = data[os.write(fd, data):]
            if self.rng.random() < P_SLOW:
                self.stopped.wait(self.rng.random())
        finally:
            op.out = "unknown"
            os.close(fd)

    def put(self, history, path, flags=os.O_TRUNC, kind="put"):
        op = self.begin(history, kind, "none", self.new_token(kind))
        with self.doing(op):
            self.write(op, path.name, os.open(path, os.O_CREAT | os.O_WRONLY | flags, 0o644))
            self.ended(op, "ok")

    def append(self, history, path):
        self.put(history, path, os.O_APPEND, "append")

    def create(self, history, path):
        op = self.begin(history, "create", "unknown")
        with self.doing(op, EEXIST="failed"):
            fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
            self.ended(op, "ok")
        if op.out != "ok":
            return
        op = self.begin(history, "put", "none", self.new_token("put"))
        with self.doing(op):
            if self.rng.random() < 0.3:
                os.close(fd)  # nothing was written, so nothing is stored
            else:
                self.write(op, path.name, fd)
                self.ended(op, "ok")

    def replace(self, history, path):
        """As programs save: to a file beside it, which is renamed over it."""
        op = self.begin(history, "put", "none", self.new_token("replace"))
        beside = path.with_name(f"beside-{op.token}")
        with self.doing(op):
            self.write(op, path.name, os.open(beside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
            op.out = "unknown"
            os.rename(beside, path)
            self.ended(op, "ok")
        if op.out != "ok":
            with contextlib.suppress(OSError):
                os.unlink(beside)

    def delete(self, history, path):
        op = self.begin(history, "delete", "unknown")
        with self.doing(op, ENOENT="failed"):
            os.unlink(path)
            self.ended(op, "ok")


# --- the program ----------------------------------------------------------------------------------


def main():
    told = json.loads(sys.stdin.readline())
    lock, stop = threading.Lock(), threading.Event()

    def tell(**what):
        with lock:
            print(json.dumps(what), flush=True)

    folder = pathlib.Path(told["folder"])
    book = Book(folder, tell)
    servers = [tuple(s) for s in told["servers"]]
    gates = {m["name"]: Gate(pathlib.Path(m["path"])) for m in told["mounts"]}
    clients = []
    for k, m in enumerate(told["mounts"], 1):
        for j in "ab":
            clients.append(HttpClient(servers, book, f"h{k}{j}", m["net"], told["seed"], stop))
            clients.append(FileClient(gates[m["name"]], book, f"f{k}{j}", m["net"], told["seed"], stop))
    for c in clients:
        c.start()
    for line in sys.stdin:
        command, _, name = line.strip().partition(" ")
        if command == "stop":
            break
        getattr(gates[name], command)()
        if command == "drain":
            tell(drained=name)
    stop.set()
    for c in clients:
        c.join()
    book.finish()
    with open(folder / "summary", "wb") as f:
        pickle.dump({"later": dict(book.later), "counts": book.counts, "successes": book.successes}, f)
    tell(summary=str(folder / "summary"))


if __name__ == "__main__":
    main()
