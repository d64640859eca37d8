"""kvredis.py - clusters whose nodes keep their data in a redis-server each, which the test starts, kills and asks."""
import contextlib
import os
import shutil
import signal
import socket
import subprocess

from kvtest import Cluster, wait_until

REDIS_LIMIT_S = 30


class Redis:
    """One redis-server on a port of the test, with its data in a directory of the test."""

    def __init__(self, port, path, args=()):
        self.port, self.path, self.args, self.proc = port, path, list(args), None
        path.mkdir(exist_ok=True)

    def start(self, *extra):
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.path), "--save", "",
                   "--appendonly", "yes", "--appendfsync", "always", "--logfile", str(self.path / "log"), *self.args, *extra]
        self.proc = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        wait_until(self.answers, REDIS_LIMIT_S, f"the Redis on port {self.port} answers")

    def answers(self):
        assert self.proc.poll() is None, f"the Redis on port {self.port} ended: {(self.path / 'log').read_text()[-400:]}"
        with contextlib.suppress(OSError, RedisError):  # it loads its data
            return self.ask("PING") == b"PONG"
        return False

    def ask(self, *words, password=None):
        """One command; its answer as bytes, number, None, list, or an exception."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as s, s.makefile("rb") as f:
            if password:
                send(s, ("AUTH", password))
                read(f)
            send(s, words)
            got = read(f)
            if isinstance(got, RedisError) and not str(got).startswith("NOAUTH"):
                raise got
            return b"PONG" if isinstance(got, RedisError) else got

    def kill9(self):
        if self.proc is not None:
            self.proc.send_signal(signal.SIGCONT)
            self.proc.kill()
            self.proc.wait()
            self.proc = None

    def sigstop(self):
        self.proc.send_signal(signal.SIGSTOP)

    def sigcont(self):
        self.proc.send_signal(signal.SIGCONT)


class RedisError(Exception):
    pass


def send(s, words):
    words = [w if isinstance(w, bytes) else str(w).encode() for w in words]
    s.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words))


def read(f):
    line = f.readline()
    if not line:
        raise ConnectionResetError("the Redis closed the connection")
    kind, rest = line[:1], line[1:-2]
    if kind == b"-":
        return RedisError(rest.decode())
    if kind == b":":
        return int(rest)
    if kind == b"$":
        return None if rest == b"-1" else f.read(int(rest) + 2)[:-2]
    if kind == b"*":
        return [read(f) for _ in range(int(rest))]
    return rest


class RedisCluster(Cluster):
    """Node i (of `on`; all, if not given) on base_port + i keeps its data in the Redis on base_port + 10 + i."""

    def __init__(self, redis_args=(), db=0, on=None, redis_fsync=None, **kw):
        self.redis, self.redis_args, self.db, self.redis_fsync = {}, list(redis_args), db, redis_fsync
        self.start_now = kw.pop("start", True)
        super().__init__(start=False, **kw)
        try:
            for i in on or self.nodes():
                self.redis[i] = Redis(self.base_port + 10 + i, self.dir / f"redis-{i}", redis_args)
                self.redis[i].start()
            if self.start_now:
                self.start()
        except BaseException:
            self.close()
            raise

    def store_url(self, i):
        return f"redis://127.0.0.1:{self.redis[i].port}/{self.db}"

    def command(self, i, extra=()):
        words = super().command(i, extra)
        if i in self.redis:
            words[words.index("--store") + 1] = self.store_url(i)
            words[words.index("--fsync") + 1] = self.redis_fsync or self.fsync
        return words

    def close(self):
        keep, self.keep = self.keep, True
        with contextlib.redirect_stdout(open(os.devnull, "w", encoding="utf-8")):
            super().close()
        self.keep = keep
        for r in self.redis.values():
            r.kill9()
        if keep:
            print(f"# kept {self.dir}", flush=True)
        else:
            shutil.rmtree(self.dir, ignore_errors=True)
