"""kvtest.py - real kvnode and kvfs processes for tests: start, kill, freeze, speak HTTP to them, clean up.

A test file is a program: `with Claims() as t:` and, inside, one `with t.claim("a sentence"):` per
claim. Each prints one line, "ok SENTENCE" or "not ok SENTENCE REASON"; the program exits non-zero
when one failed.
"""
import contextlib
import fcntl
import http.client
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback

ROOT = pathlib.Path(__file__).resolve().parents[2]
KVNODE = os.environ.get("KVNODE", str(ROOT / "build/node/kvnode"))
KVFS = os.environ.get("KVFS", str(ROOT / "build/fs/kvfs"))
START_LIMIT_S = 30
STOP_LIMIT_S = 20
LOCK_LIMIT_S = 200


# --- claims ---------------------------------------------------------------------------------------


class Claims:
    """Counts claims; leaving the block ends the program with the verdict."""

    def __init__(self, take_turns=True):
        self.failed = 0
        self.turns = take_turns
        self.only = sys.argv[1] if len(sys.argv) > 1 else ""

    def __enter__(self):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that `with` blocks clean up
        if self.turns:
            self.take_turns()
        return self

    def take_turns(self):
        """Each file has ports of its own; a second run of the same file waits for the first."""
        name = pathlib.Path(sys.argv[0]).stem
        self.lock = open(pathlib.Path(tempfile.gettempdir()) / f"kvfs-{name}.lock", "w")
        wait_until(self._locked, LOCK_LIMIT_S, f"another run of {name} ends")

    def _locked(self):
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def __exit__(self, kind, value, tb):
        if kind not in (None, SystemExit):
            traceback.print_exception(kind, value, tb)
            print(f"not ok {pathlib.Path(sys.argv[0]).name} ended early: {kind.__name__}: {value}", flush=True)
            self.failed += 1
        if kind is not SystemExit:
            sys.exit(1 if self.failed else 0)

    @contextlib.contextmanager
    def claim(self, sentence):
        """Runs the block; what it raises is the reason of a failure, and the next claim goes on."""
        try:
            yield
        except Exception as e:
            self.failed += 1
            frames = traceback.extract_tb(e.__traceback__)
            line = next((f for f in reversed(frames) if f.filename == sys.argv[0]), frames[-1])
            reason = str(e).replace("\n", " ")[:400] or line.line
            print(f"not ok {sentence}: {type(e).__name__} line {line.lineno}: {reason}", flush=True)
        else:
            print(f"ok {sentence}", flush=True)


def eq(got, want, what=""):
    if got != want:
        raise AssertionError(f"{what + ': ' if what else ''}got {shorten(got)}, want {shorten(want)}")


def shorten(v):
    text = repr(v)
    return text if len(text) <= 200 else f"{text[:150]}... ({len(text)})"


def wait_until(condition, limit_s, what):
    """Asks again and again, briefly apart, until condition() is true; returns what it returned."""
    end = time.monotonic() + limit_s
    pause = threading.Event()
    while True:
        got = condition()
        if got:
            return got
        if time.monotonic() > end:
            raise AssertionError(f"not within {limit_s} s: {what}")
        pause.wait(0.02)


def soon(call, want, limit_s=5):
    """Until call() gives what it should: stat and listings of a mount may be a moment behind what others did."""
    try:
        wait_until(lambda: call() == want, limit_s, "as it should be")
    except AssertionError:
        eq(call(), want)


# --- HTTP -----------------------------------------------------------------------------------------


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def json(self):
        return json.loads(self.body)

    def __repr__(self):
        return f"<{self.status} {shorten(self.body)}>"


class _Raw(http.client.HTTPConnection):
    """Sends a path exactly as given."""

    def _validate_path(self, url):
        pass


def request(port, method, path, body=None, headers=None, timeout=15, host="127.0.0.1", conn=None):
    """One request; path is sent as it stands (no normalisation, no escaping). conn: from connect()."""
    own = conn is None
    c = conn or connect(port, timeout, host)
    try:
        c.putrequest(method, path, skip_host=False, skip_accept_encoding=True)
        headers = dict(headers or {})
        chunked = headers.pop("_chunked", False)
        if chunked:
            c.putheader("Transfer-Encoding", "chunked")
        elif body is not None and "Content-Length" not in headers:
            c.putheader("Content-Length", str(len(body)))
        for name, value in headers.items():
            c.putheader(name, value)
        c.endheaders()
        if chunked:
            for part in body:
                c.send(b"%x\r\n%s\r\n" % (len(part), part))
            c.send(b"0\r\n\r\n")
        elif body:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                c.send(body)  # refused before it is all sent: the answer is there
        r = c.getresponse()
        return Answer(r.status, r.headers, r.read())
    finally:
        if own:
            c.close()


def connect(port, timeout=15, host="127.0.0.1"):
    c = _Raw(host, port, timeout=timeout)
    c.connect()
    c.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return c


def raw(port, data, timeout=15, half_close=False):
    """Sends bytes on a fresh socket, returns all that comes back until the node closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout) as s:
        s.settimeout(timeout)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            s.sendall(data)
            if half_close:
                s.shutdown(socket.SHUT_WR)
        return read_all(s)


def read_all(s):
    got = b""
    with contextlib.suppress(ConnectionResetError):
        while part := s.recv(65536):
            got += part
    return got


# --- a cluster ------------------------------------------------------------------------------------


class Cluster:
    """n nodes on base_port+1 .. base_port+n with data in a temporary folder. Nodes are numbered from 1."""

    def __init__(self, n=3, base_port=18200, rf=3, store="rocksdb", fsync="always", config=None, args=(), start=True,
                 hosts=None):
        self.n, self.base_port, self.store, self.fsync, self.args = n, base_port, store, fsync, list(args)
        self.hosts = hosts or {}
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="kvtest-"))
        self.config = {
            "nodes": [{"id": f"node-{i}", "addr": f"{self.hosts.get(i, 'localhost')}:{base_port + i}"}
                      for i in range(1, n + 1)],
            "replication_factor": rf,
            **(config or {}),
        }
        self.config_path = self.dir / "cluster.json"
        self.config_path.write_text(json.dumps(self.config))
        self.procs = {}
        self.frozen = set()
        self.mounts = []
        self.keep = bool(os.environ.get("KVTEST_KEEP"))
        if start:
            try:
                self.start()
            except BaseException:
                self.close()
                raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def nodes(self):
        return range(1, self.n + 1)

    def port(self, i):
        return self.base_port + i

    def host(self, i):
        return self.hosts.get(i, "127.0.0.1")

    def url(self, i, path=""):
        return f"http://localhost:{self.port(i)}{path}"

    def urls(self):
        return [self.url(i) for i in self.nodes()]

    def log_path(self, i):
        return self.dir / f"node-{i}.log"

    def log(self, i):
        return self.log_path(i).read_text(errors="replace")

    def data_dir(self, i):
        return self.dir / f"node-{i}"

    def command(self, i, extra=()):
        return [KVNODE, "--config", str(self.config_path), "--id", f"node-{i}", "--data", str(self.data_dir(i)),
                "--store", self.store, "--fsync", self.fsync, *self.args, *extra]

    def start(self, *which, wait=True, extra=()):
        which = which or self.nodes()
        for i in which:
            assert i not in self.procs, f"node-{i} runs already"
            with open(self.log_path(i), "ab") as log:
                log.write(b"--- start\n")
                log.flush()
                self.procs[i] = subprocess.Popen(
                    self.command(i, extra), stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=self.dir
                )
        if wait:
            for i in which:
                self.wait_ready(i)
            self.wait_alive()

    def wait_alive(self):
        """Until every running node sees every running node (frozen ones apart), and that it is whole."""
        awake = set(self.procs) - self.frozen

        def alive(i):
            status = request(self.port(i), "GET", "/status", timeout=5, host=self.host(i)).json()
            seen = {n["id"] for n in status["nodes"] if n["alive"] and not n["recovering"]}
            return {f"node-{k}" for k in awake} <= seen

        for i in awake:
            wait_until(lambda i=i: alive(i), START_LIMIT_S, f"node-{i} sees the others")

    def wait_ready(self, i):
        def ready():
            code = self.procs[i].poll()
            if code is not None:
                tail = self.log(i).rsplit("--- start\n", 1)[-1][-600:]
                raise AssertionError(f"node-{i} ended with {code}: {tail}")
            with contextlib.suppress(OSError, http.client.HTTPException):
                return request(self.port(i), "GET", "/health", timeout=2, host=self.host(i)).status == 200
            return False

        wait_until(ready, START_LIMIT_S, f"node-{i} answers /health")

    def pid(self, i):
        return self.procs[i].pid

    def stop(self, *which):
        """SIGTERM, waits; the exit codes."""
        which = which or list(self.procs)
        for i in which:
            self.procs[i].send_signal(signal.SIGTERM)
        return [self._reap(i, STOP_LIMIT_S) for i in which]

    def kill9(self, *which):
        which = which or list(self.procs)
        for i in which:
            self.procs[i].kill()
        for i in which:
            self._reap(i, STOP_LIMIT_S)

    def _reap(self, i, limit_s):
        p = self.procs.pop(i)
        self.frozen.discard(i)
        try:
            return p.wait(limit_s)
        except subprocess.TimeoutExpired:
            p.kill()
            p.wait()
            raise AssertionError(f"node-{i} did not end within {limit_s} s") from None

    def sigstop(self, i):
        self.procs[i].send_signal(signal.SIGSTOP)
        self.frozen.add(i)
        wait_until(lambda: is_frozen(self.pid(i)), STOP_LIMIT_S, f"all threads of node-{i} stand still")

    def sigcont(self, i):
        self.procs[i].send_signal(signal.SIGCONT)
        self.frozen.discard(i)

    def http(self, method, path, body=None, headers=None, node=1, timeout=15, conn=None):
        return request(self.port(node), method, path, body, headers, timeout, self.host(node), conn)

    def repair(self, i):
        """What the node tells of its own repair."""
        return request(self.port(i), "GET", "/status", timeout=5, host=self.host(i)).json()["repair"]

    def replica(self, i, key):
        """This node's own copy of a key (as in a path): status, version, bytes."""
        a = request(self.port(i), "GET", f"/replica/{key}", host=self.host(i))
        return a.status, a.headers["ETag"] if a.status == 200 else None, a.body if a.status == 200 else b""

    def wait_same(self, keys, limit_s, what):
        """Until all nodes, asked one by one, hold the same of every key; returns it by key."""
        found = {}

        def same():
            for key in keys:
                if key not in found:
                    copies = [self.replica(i, key) for i in self.nodes()]
                    if copies.count(copies[0]) < self.n or copies[0][0] not in (200, 404):
                        self.differing = key, copies
                        return False
                    found[key] = copies[0]
            return True

        try:
            wait_until(same, limit_s, what)
        except AssertionError as e:
            key, copies = self.differing
            raise AssertionError(f"{e}: {key}: {[(s, v, len(b)) for s, v, b in copies]}") from None
        return found

    def wipe(self, i):
        shutil.rmtree(self.data_dir(i))

    def mount(self, name="mnt", options=()):
        m = Mount(self.config_path, self.dir / name, options)
        self.mounts.append(m)
        return m

    def close(self):
        for m in self.mounts:
            m.close()
        for p in self.procs.values():
            with contextlib.suppress(ProcessLookupError):
                p.send_signal(signal.SIGCONT)
                p.kill()
        for p in self.procs.values():
            p.wait()
        self.procs.clear()
        if self.keep:
            print(f"# kept {self.dir}", flush=True)
        else:
            shutil.rmtree(self.dir, ignore_errors=True)


class Gateway:
    """kvnode --gateway on a port of its own, over the nodes of a cluster.json."""

    def __init__(self, config_path, port, log_path):
        self.port, self.log_path = port, pathlib.Path(log_path)
        with open(self.log_path, "wb") as log:
            args = [KVNODE, "--config", str(config_path), "--gateway", f"localhost:{port}"]
            self.proc = subprocess.Popen(args, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def wait_ready(self):
        wait_until(self._answers, START_LIMIT_S, f"the gateway on {self.port} answers")
        return self

    def _answers(self):
        if self.proc.poll() is not None:
            raise AssertionError(f"the gateway ended with {self.proc.returncode}: {self.log_path.read_text()[-600:]}")
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self.http("GET", "/health", timeout=2).status == 200
        return False

    def http(self, method, path, body=None, headers=None, timeout=15, conn=None):
        return request(self.port, method, path, body, headers, timeout, conn=conn)

    def nodes(self):
        """The rows of its /status, by id."""
        return {n["id"]: n for n in self.http("GET", "/status", timeout=5).json()["nodes"]}

    def stop(self, limit_s=STOP_LIMIT_S):
        self.proc.terminate()
        return self.proc.wait(limit_s)

    def close(self):
        if self.proc.poll() is None:
            self.proc.kill()
        self.proc.wait()


# --- a mount --------------------------------------------------------------------------------------


class Mount:
    """kvfs in the foreground, so that its process is ours to stop, freeze and kill."""

    def __init__(self, config_path, path, options=(), start=True, prefix=()):
        self.config_path, self.path, self.options = config_path, pathlib.Path(path), list(options)
        self.prefix = list(prefix)  # before the command
        self.log_path = pathlib.Path(f"{path}.log")
        self.proc = None
        self.path.mkdir(exist_ok=True)
        if start:
            try:
                self.start()
            except BaseException:
                self.close()
                raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def start(self):
        args = [*self.prefix, KVFS, str(self.config_path), str(self.path), "-f"]
        if self.options:
            args += ["-o", ",".join(self.options)]
        with open(self.log_path, "ab") as log:
            self.proc = subprocess.Popen(args, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

        def mounted():
            if self.proc.poll() is not None:
                raise AssertionError(f"kvfs ended with {self.proc.returncode}: {self.log()[-600:]}")
            return is_mounted(self.path)

        wait_until(mounted, START_LIMIT_S, f"{self.path} is mounted")

    def log(self):
        return self.log_path.read_text(errors="replace")

    def stop(self, limit_s=STOP_LIMIT_S):
        """SIGTERM, waits; the exit code."""
        self.proc.terminate()
        code = self.proc.wait(limit_s)
        self.proc = None
        return code

    def kill9(self):
        self.proc.kill()
        self.proc.wait()
        self.proc = None
        self._unmount()

    def sigstop(self):
        self.proc.send_signal(signal.SIGSTOP)

    def sigcont(self):
        self.proc.send_signal(signal.SIGCONT)

    def _unmount(self):
        if is_mounted(self.path):
            subprocess.run(["fusermount3", "-u", "-z", str(self.path)], stderr=subprocess.DEVNULL, check=False)

    def close(self):
        if self.proc is not None:
            with contextlib.suppress(ProcessLookupError):
                self.proc.send_signal(signal.SIGCONT)
                self.proc.terminate()
            try:
                self.proc.wait(5)
            except subprocess.TimeoutExpired:
                self.proc.kill()
                self.proc.wait()
            self.proc = None
        self._unmount()


def is_frozen(pid):
    """On a busy machine some threads of a process that was told to stop go on for a moment."""
    states = [t.read_text().rsplit(")", 1)[1].split()[0] for t in pathlib.Path(f"/proc/{pid}/task").glob("*/stat")]
    return all(state in "TtZX" for state in states)


def is_mounted(path):
    """From the kernel's table: asking the file system itself could hang."""
    want = str(pathlib.Path(path).absolute()).replace(" ", "\\040")
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as f:
        return any(line.split(" ")[4] == want for line in f)
