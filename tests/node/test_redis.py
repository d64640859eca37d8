"""test_redis.py - nodes that keep their data in a Redis each: what goes on while a Redis dies and comes back."""
import contextlib
import http.client
import os
import signal
import subprocess
import sys
import threading
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from kvredis import RedisCluster  # noqa: E402
from kvtest import STOP_LIMIT_S, Claims, eq, wait_until  # noqa: E402

BASE = 22000
VALUE_MAX = 4 << 20


def value_of(i, size=300):
    return (b"%d;" % i * size)[:size]


def health(c, node):
    """Status and text, or 0 while nobody answers."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        a = c.http("GET", "/health", node=node, timeout=5)
        return a.status, a.body.decode()
    return 0, ""


class Load:
    """Clients that write and read through the nodes that they were given, until they are told to stop."""

    def __init__(self, c, nodes, n=3):
        self.c, self.nodes, self.stop = c, list(nodes), threading.Event()
        self.acked, self.failed, self.done = {}, [], 0
        self.threads = [threading.Thread(target=self.run, args=(k,)) for k in range(n)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for thread in self.threads:
            thread.join()

    def run(self, who):
        i = 0
        while not self.stop.is_set():
            node, key = self.nodes[i % len(self.nodes)], f"load-{who}-{i % 20}"
            value = value_of(i, 200 if i % 10 else 100_000)
            try:
                a = self.c.http("PUT", f"/kv/{key}", value, node=node)
                if a.status in (200, 201):
                    self.acked[key] = value
                else:
                    self.failed.append((node, a))
                a = self.c.http("GET", f"/kv/{key}", node=node)
                if (a.status, a.body) != (200, value):
                    self.failed.append((node, "GET", a.status, len(a.body)))
            except (OSError, http.client.HTTPException) as e:
                self.failed.append((node, e))
            i += 1
            self.done += 1

    def goes_on(self, n=6):
        want = self.done + n
        wait_until(lambda: self.done >= want or self.failed, 60, "clients go on")
        eq(self.failed, [], "failed")


def everything(t, c):
    with t.claim("put, get, range, conditions, append, listing and delete are as with any store"):
        big = os.urandom(2_500_000)
        eq(c.http("PUT", "/kv/a/small", b"one").status, 201)
        eq(c.http("PUT", "/kv/a/big", big, node=2).status, 201)
        a = c.http("GET", "/kv/a/big", node=3)
        assert a.body == big, len(a.body)
        eq(c.http("GET", "/kv/a/big", None, {"Range": "bytes=1048570-2100000"}, node=1).body, big[1048570:2100001])
        a = c.http("GET", "/kv/a/small", node=3)
        eq(a.body, b"one")
        eq(c.http("PUT", "/kv/a/small", b"x", {"If-None-Match": "*"}, node=2).status, 412)
        eq(c.http("PUT", "/kv/a/small", b"two", {"If-Match": a.headers["ETag"]}, node=2).status, 200)
        eq(c.http("PUT", "/kv/a/small", b"three", {"If-Match": a.headers["ETag"]}, node=3).status, 412)
        eq(c.http("POST", "/kv/a/small?append", b"+", node=1).status, 200)
        eq(c.http("GET", "/kv/a/small", node=2).body, b"two+")
        odd = "/kv/a/%FF%0D%0A%2500%22"
        eq(c.http("PUT", odd, b"odd").status, 201)
        eq(c.http("GET", odd, node=2).body, b"odd")
        listed = c.http("GET", "/kv?prefix=a/", node=2).json()["keys"]
        eq([k.get("key") for k in listed], ["a/big", "a/small", None])
        eq(c.http("GET", "/kv?delimiter=/", node=3).json()["prefixes"], ["a/"])
        eq(c.http("DELETE", odd, node=3).status, 204)
        eq(c.http("GET", odd, node=1).status, 404)
    with t.claim("what a Redis has is told by its keys, and /status tells how many"):
        wait_until(lambda: c.redis[1].ask("EXISTS", "kvfs:r:a/small") == 1, 10, "node-1 has it")
        eq(c.redis[1].ask("HGET", "kvfs:owner", "node"), b"node-1")
        assert b"a/big" in c.redis[1].ask("ZRANGE", "kvfs:keys", 0, -1)
        me = next(n for n in c.http("GET", "/status").json()["nodes"] if n.get("self"))
        eq(me["keys"], c.redis[1].ask("ZCARD", "kvfs:keys"))
        assert 0 < me["disk_free"] <= me["disk_total"]


def one_redis_dies(t, c):
    with Load(c, [1, 2, 3]) as load:
        with t.claim("a Redis killed with -9 under load fails no operation, also through its own node"):
            load.goes_on()
            c.redis[2].kill9()
            load.goes_on(30)
        with t.claim("its node says so by /health 503 with the reason, and lives"):
            status, text = wait_until(lambda: (h := health(c, 2))[0] == 503 and h, 20, "node-2 says 503")
            assert f"127.0.0.1:{c.redis[2].port}" in text and "refused" in text, text
            eq(c.procs[2].poll(), None)
            eq(health(c, 1)[0], 200)
        with t.claim("when it is back its node serves again by itself, and comes to hold what it missed"):
            load.goes_on()
            c.redis[2].start()
            wait_until(lambda: health(c, 2)[0] == 200, 20, "node-2 says 200")
            load.goes_on()
    with t.claim("afterwards all three hold the same, and no Redis has pieces that nobody names"):
        c.wait_same(list(load.acked), 90, "all three hold what was written")
        for key, value in load.acked.items():
            eq(c.http("GET", f"/kv/{key}", node=2).body, value, key)
        for i in c.nodes():
            wait_until(lambda i=i: c.redis[i].ask("SCARD", "kvfs:loose") == 0, 30, f"nothing is loose at node-{i}")
    with t.claim("a Redis that freezes fails no operation either, and serves again when it goes on"):
        with Load(c, [1, 3]) as load:
            c.redis[2].sigstop()
            load.goes_on(20)
            wait_until(lambda: health(c, 2)[0] == 503, 30, "node-2 says 503")
            start = time.monotonic()
            eq(c.http("GET", "/status", node=2).status, 200)
            assert time.monotonic() - start < 2, "/status waits"
            c.redis[2].sigcont()
            wait_until(lambda: health(c, 2)[0] == 200, 20, "node-2 says 200")
            load.goes_on()
        eq(load.failed, [], "failed")


def all_die(t, c):
    with t.claim("all three Redis killed with -9 under load and started again: nothing acknowledged is lost"):
        with Load(c, [1, 2, 3]) as load:
            load.goes_on(20)
            for i in c.nodes():
                c.redis[i].proc.send_signal(signal.SIGKILL)
            load.stop.set()
            for i in c.nodes():
                c.redis[i].kill9()
                c.redis[i].start()
        for i in c.nodes():
            wait_until(lambda i=i: health(c, i)[0] == 200, 30, f"node-{i} says 200")
        for key, value in load.acked.items():
            a = wait_until(lambda key=key: (a := c.http("GET", f"/kv/{key}")).status != 503 and a, 30, key)
            eq(a.status, 200, key)
            if a.body != value:  # only a later one of the same client, of which nobody was told
                assert int(a.body.split(b";")[0]) > int(value.split(b";")[0]), (key, a.body[:10], value[:10])
    with t.claim("the nodes restart with what their Redis has"):
        eq(c.stop(), [0, 0, 0])
        c.start()
        a = c.http("GET", "/kv/a/small", node=2)
        eq(a.body, b"two+")
        assert "recovering" not in c.log(1).rsplit("--- start", 1)[-1]
    with t.claim("nodes killed with -9 take their Redis again at once"):
        c.kill9()
        begun = time.monotonic()
        c.start()
        eq(c.http("GET", "/kv/a/small", node=3).body, b"two+")
        assert "redis-waits" not in c.log(1).rsplit("--- start", 1)[-1]
        print(f"# three nodes killed and back in {time.monotonic() - begun:.1f} s", flush=True)


def lost_data(t, c):
    with t.claim("a Redis that was emptied is a lost disk: its node starts anew and recovers from the others"):
        pid, was = c.pid(3), c.http("GET", "/status", node=3).json()
        before = next(n for n in was["nodes"] if n.get("self"))["incarnation"]
        c.redis[3].ask("FLUSHALL")

        def whole():
            with contextlib.suppress(OSError, http.client.HTTPException, StopIteration):
                me = next(n for n in c.http("GET", "/status", node=3).json()["nodes"] if n.get("self"))
                return me["incarnation"] != before and health(c, 3)[0] == 200
            return False

        wait_until(whole, 60, "node-3 is whole again, in a new incarnation")
        eq(c.pid(3), pid)
        eq(c.procs[3].poll(), None)
        assert "lost what it had acknowledged" in c.log(3)
        status, _, body = wait_until(lambda: (r := c.replica(3, "a/small"))[0] == 200 and r, 20, "node-3 has it")
        eq((status, body), (200, b"two+"))


def refused(c, i, *extra, env=None, limit_s=30):
    """Starts node i, which must not start: what it says."""
    p = subprocess.run([*c.command(i), *extra], capture_output=True, timeout=limit_s, cwd=c.dir, check=False,
                       env={**os.environ, **(env or {})})
    assert p.returncode in (1, 2), p.returncode
    return p.stderr.decode().splitlines()[-1]


def what_is_refused(t, c):
    eq(c.stop(1), [0])
    url = f"127.0.0.1:{c.redis[1].port}"
    with t.claim("a wrong password, or none, is refused with what Redis says; the right one comes from a file or the environment"):
        c.redis[1].ask("CONFIG", "SET", "requirepass", "s3cret")
        try:
            text = refused(c, 1)
            assert url in text and "NOAUTH" in text, text
            text = refused(c, 1, env={"KVFS_REDIS_PASSWORD": "guess"})
            assert url in text and "WRONGPASS" in text, text
            text = refused(c, 1, "--redis-password-file", "/nowhere/password")
            assert "/nowhere/password" in text, text
            password = c.dir / "password"
            password.write_text("s3cret\n")
            password.chmod(0o600)
            c.start(1, extra=["--redis-password-file", str(password)])
            eq(c.http("GET", "/kv/a/small").body, b"two+")
            eq(c.stop(1), [0])
        finally:
            c.redis[1].ask("CONFIG", "SET", "requirepass", "", password="s3cret")
        words = c.command(1)
        words[words.index("--store") + 1] = f"redis://:s3cret@{url}/0"
        p = subprocess.run(words, capture_output=True, timeout=30, check=False)
        eq(p.returncode, 2)
        assert b"--redis-password-file" in p.stderr and b"s3cret" not in p.stderr, p.stderr
    with t.claim("a Redis that does not sync is refused with what to set, and taken with --fsync everysec"):
        c.redis[1].ask("CONFIG", "SET", "appendfsync", "everysec")
        text = refused(c, 1)
        assert url in text and "appendfsync always" in text, text
        c.start(1, extra=["--fsync", "everysec"])
        eq(c.http("PUT", "/kv/everysec", b"1", node=1).status, 201)
        c.redis[1].ask("CONFIG", "SET", "appendfsync", "always")
        eq(c.stop(1), [0])
    with t.claim("a user of an ACL who may ask neither INFO nor CONFIG does, with a warning; its name may need percent signs"):
        c.redis[1].ask("ACL", "SETUSER", "kv@fs/1", "on", ">s3cret", "~kvfs:*", "+@all", "-@dangerous")
        c.start(1, extra=["--store", f"redis://kv%40fs%2F1@{url}/0", "--redis-password-file", str(c.dir / "password")])
        eq(c.http("PUT", "/kv/acl", b"1", node=1).status, 201)
        eq(c.http("GET", "/kv/a/small", node=1).body, b"two+")
        assert "INFO and CONFIG GET are refused" in c.log(1).rsplit("--- start", 1)[-1]
        assert c.redis[1].ask("CLIENT", "LIST").count(b"user=kv@fs/1") > 0
        eq(c.stop(1), [0])
        c.redis[1].ask("ACL", "DELUSER", "kv@fs/1")
    with t.claim("SIGTERM ends a node that waits for its Redis, with 0 and at once"):
        words = c.command(1)
        words[words.index("--data") + 1] = str(c.dir / "elsewhere-3")
        with subprocess.Popen(words, stderr=subprocess.PIPE, cwd=c.dir) as p:
            try:
                seen = b""
                while b"redis-waits" not in seen:
                    line = p.stderr.readline()
                    assert line, seen
                    seen += line
                p.terminate()
                text = p.stderr.read()
                eq(p.wait(STOP_LIMIT_S), 0)
                assert b"listening" not in text and b"stopped" in text, text
            finally:
                p.kill()
    with t.claim("two nodes on one database are refused, whether they are the same node or not"):
        c.start(1)
        words = c.command(1)
        words[words.index("--data") + 1] = str(c.dir / "elsewhere")
        words[words.index("--config") + 1] = str(moved(c, BASE + 30))
        p = subprocess.run(words, capture_output=True, timeout=40, cwd=c.dir, check=False)
        assert p.returncode == 1 and b"in use by another kvnode" in p.stderr, p.stderr
        words[words.index("--id") + 1] = "node-2"
        words[words.index("--data") + 1] = str(c.dir / "elsewhere-2")
        p = subprocess.run(words, capture_output=True, timeout=40, cwd=c.dir, check=False)
        assert p.returncode == 1 and b"the data of node node-1" in p.stderr, p.stderr
        eq(c.http("PUT", "/kv/after", b"1", node=1).status, 201)


def moved(c, base):
    """The same cluster at other ports."""
    path = c.dir / "moved.json"
    text = c.config_path.read_text()
    for i in c.nodes():
        text = text.replace(str(c.port(i)), str(base + i))
    path.write_text(text)
    return path


def not_there_yet(t, c):
    c.stop(2)
    c.redis[2].kill9()
    with t.claim("a node started while its Redis is not there says so by /health 503, and can be stopped"):
        c.start(2, wait=False)
        status, text = wait_until(lambda: (h := health(c, 2))[0] == 503 and h, 20, "node-2 says 503")
        assert "waits for its store" in text and f"127.0.0.1:{c.redis[2].port}" in text and "refused" in text, text
        eq(c.http("GET", "/kv/a/small", node=2).status, 503)
        eq(c.http("PUT", "/kv/meanwhile", b"1").status, 201)
        eq(c.stop(2), [0])
    with t.claim("and serves when it is there"):
        c.start(2, wait=False)
        wait_until(lambda: health(c, 2)[0] == 503, 20, "node-2 says 503")
        pid = c.pid(2)
        c.redis[2].start()
        wait_until(lambda: health(c, 2)[0] == 200, 20, "node-2 says 200")
        eq(c.pid(2), pid)
        eq(c.http("GET", "/kv/meanwhile", node=2).body, b"1")
        wait_until(lambda: c.redis[2].ask("EXISTS", "kvfs:r:meanwhile") == 1, 20, "node-2 has it")


def full(t, c):
    with t.claim("Redis without memory refuses values with 507 and takes deletes; with room again all goes on"):
        for i in c.nodes():
            used = int(next(line for line in c.redis[i].ask("INFO", "memory").decode().splitlines()
                            if line.startswith("used_memory:")).split(":")[1])
            c.redis[i].ask("CONFIG", "SET", "maxmemory", used + 300_000)
        wait_until(lambda: c.http("PUT", "/kv/fill", os.urandom(500_000)).status == 507, 20, "507")
        eq(c.http("GET", "/kv/a/small").body, b"two+")
        eq(c.http("DELETE", "/kv/a/big").status, 204)
        for i in c.nodes():
            c.redis[i].ask("CONFIG", "SET", "maxmemory", 0)
        wait_until(lambda: c.http("PUT", "/kv/fill", b"x").status in (200, 201), 20, "stored")


with Claims() as t, RedisCluster(base_port=BASE, config={"max_value_size": VALUE_MAX}) as c:
    everything(t, c)
    one_redis_dies(t, c)
    all_die(t, c)
    lost_data(t, c)
    what_is_refused(t, c)
    not_there_yet(t, c)
    full(t, c)
