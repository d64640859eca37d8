"""test_full_disk.py - nodes whose disks are full: values are refused, deletes go on, and nobody has to start them again."""
import contextlib
import http.client
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from kvtest import Claims, Cluster, connect, eq, wait_until  # noqa: E402

SIZE = 60_000  # of a value: the largest that stands in the database's tables, about
FLUSHED = 18 << 20  # a larger table was not written from memory, but is rewritten from others
MUCH = 150 << 20  # of tables: more than ROOM has to be rewritten at once
ROOM = 100 << 20  # more than the reserve


class SmallDiskCluster(Cluster):
    """Each node's data is on a small disk that only the node sees; gone when it ends."""

    def __init__(self, size, **kw):
        self.size = size
        super().__init__(**kw)

    def command(self, i, extra=()):
        self.data_dir(i).mkdir(exist_ok=True)
        mount = f'mount -t tmpfs -o size={self.size}m none "$0" && exec "$@"'
        return ["unshare", "--mount", "sh", "-c", mount, str(self.data_dir(i)), *super().command(i, extra)]

    def inside(self, i, name):
        """The path of a file on that disk, as seen from here."""
        return pathlib.Path(f"/proc/{self.pid(i)}/root{self.data_dir(i)}/{name}")


def name_of(i):
    """In no order, so that a new table has to be rewritten with all that are there."""
    return f"/kv/k{i * 7919 % 10007:05}"


def value_of(i):
    return (b"%d;" % i * (SIZE // 2))[:SIZE]


def fill(path):
    """Returns how long the file has become."""
    with open(path, "ab", buffering=0) as f:
        for size in (65536, 512):
            with contextlib.suppress(OSError):
                while f.write(b"x" * size):
                    pass
        return f.tell()


def health(c):
    with contextlib.suppress(OSError, http.client.HTTPException):
        return c.http("GET", "/health", timeout=5).status
    return None


def delete(c, i, limit):
    """Where RocksDB was just writing a table, it needs some seconds to notice that there is room."""
    def deleted():
        with contextlib.suppress(OSError, http.client.HTTPException):
            return c.http("DELETE", name_of(i)).status in (204, 404)
        return False

    begun = time.monotonic()
    wait_until(deleted, limit, "a delete")
    return time.monotonic() - begun


def full_disk(t):
    with SmallDiskCluster(320, n=1, rf=1, base_port=20250) as c:
        n, slowest = 0, 0
        with t.claim("a node fills its disk up to 507; then it still reads and deletes"):
            with contextlib.closing(connect(c.port(1))) as conn:
                while (a := c.http("PUT", name_of(n), value_of(n), conn=conn)).status == 201:
                    n += 1
            eq(a.status, 507)
            assert n > 1000, n
            eq(c.http("GET", name_of(7)).body, value_of(7))
            eq(c.http("DELETE", name_of(0)).status, 204)
        with t.claim("it does when others have taken the last byte, too"):
            fill(c.inside(1, "filler"))
            for i in range(1, 500):
                slowest = max(slowest, delete(c, i, 20))
            for i in (0, 300):
                eq(c.http("GET", name_of(i)).status, 404)
            for i in (500, n - 1):
                eq(c.http("GET", name_of(i)).body, value_of(i))

            def refused():
                """What the database was just rewriting may have given room back a moment later."""
                fill(c.inside(1, "filler"))
                return c.http("PUT", "/kv/new", b"x" * 1000).status == 507

            wait_until(refused, 20, "no room for a value")
        with t.claim("when there is room it stores again, without a restart"):
            c.inside(1, "filler").unlink()
            for i in range(500, n):  # its own data goes, too
                slowest = max(slowest, delete(c, i, 20))
            wait_until(lambda: c.http("PUT", "/kv/new", b"x" * 1000).status == 201, 20, "a value is stored")
            wait_until(lambda: health(c) == 200, 10, "the node says that it is well")
            print(f"# {n} values; the slowest delete took {slowest:.1f} s", flush=True)


def tables(c):
    """Sizes, by name."""
    found = {}
    for path in c.inside(1, "db").glob("*.sst"):
        with contextlib.suppress(FileNotFoundError):
            found[path.name] = path.stat().st_size
    return found


def end_under_a_rewriting(t):
    """RocksDB refuses all writes then, until as much is free as all that it was rewriting."""
    with SmallDiskCluster(832, n=1, rf=1, base_port=20280) as c:
        filler, pid, over, n = c.inside(1, "filler"), c.pid(1), threading.Event(), [0]

        def put():
            with contextlib.closing(connect(c.port(1))) as conn:
                while not over.is_set():
                    n[0] += c.http("PUT", name_of(n[0]), value_of(n[0]), conn=conn).status == 201

        def rewriting_began():
            """True leaves the node stopped, early in rewriting all it has."""
            seen = set()
            while not over.is_set():
                large = {name for name, size in tables(c).items() if size > FLUSHED}
                if large - seen and n[0] * SIZE > MUCH:
                    os.kill(pid, signal.SIGSTOP)
                    if sum(tables(c).values()) < n[0] * SIZE + MUCH / 3:
                        return True
                    os.kill(pid, signal.SIGCONT)
                seen = large
            return False

        writer = threading.Thread(target=put)
        writer.start()
        limit = threading.Timer(60, over.set)
        limit.start()
        try:
            assert rewriting_began(), tables(c)
            over.set()
            os.truncate(filler, fill(filler) - (1 << 20))  # the log must not be the first to meet it
        finally:
            limit.cancel()
            over.set()
            os.kill(pid, signal.SIGCONT)
            writer.join()
        k = iter(range(1, n[0]))

        def noticed():
            """The failed rewriting gives back what it had written, which others take at once."""
            os.truncate(filler, fill(filler) - (1 << 20))
            c.http("PUT", "/kv/new", b"x" * 1000)
            deleted = c.http("DELETE", name_of(next(k))).status
            return deleted == 507 or "tables are not rewritten" in c.log(1)

        wait_until(noticed, 20, "the node notices")
        os.truncate(filler, fill(filler) - ROOM)
        with t.claim("where the disk ended under a rewriting of tables, deletes go on when there is some room"):
            took = delete(c, 0, 40)
            for i in range(1, 200):
                delete(c, i, 20)
            eq(c.pid(1), pid)
            print(f"# after {took:.1f} s; {n[0]} values", flush=True)
        with t.claim("and when there is more, values"):
            filler.unlink()
            wait_until(lambda: c.http("PUT", "/kv/new", b"x" * 1000).status == 201, 30, "a value is stored")
            for i in (900, n[0] - 1):
                eq(c.http("GET", name_of(i)).body, value_of(i))


if (may := subprocess.run(["unshare", "--mount", "true"], capture_output=True, text=True, check=False)).returncode == 0:
    with Claims() as t:
        full_disk(t)
        end_under_a_rewriting(t)
else:
    print(f"# left out, for no disk can be mounted for a node alone: {may.stderr.strip()}", flush=True)
