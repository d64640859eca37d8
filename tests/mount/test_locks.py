"""test_locks.py - flock and fcntl locks hold within one mount; across mounts O_EXCL and mkdir are the locks; sqlite from one mount."""
import contextlib
import fcntl
import os
import pathlib
import sqlite3
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
from kvtest import Claims, Cluster, eq

LIMIT_S = 60


def holds(path, code):
    """A process that has taken a lock, until it is closed."""
    program = f"import fcntl, os, sys; fd = os.open({str(path)!r}, os.O_RDWR); {code}; print('held', flush=True); sys.stdin.read()"
    p = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    eq(p.stdout.readline(), b"held\n")
    return p


def end(p):
    p.stdin.close()
    p.wait(LIMIT_S)
    p.stdout.close()


def is_free(take):
    try:
        take()
        return True
    except BlockingIOError:
        return False


INSERTER = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], timeout=60)
for i in range(40):
    with db:
        db.execute("update counter set n = n + 1")
        db.execute("insert into t values (?, ?)", (sys.argv[2], i))
"""

with Claims() as t, Cluster(base_port=21730, fsync="never") as c:
    m, other = c.mount("mnt"), c.mount("other")
    f = m.path / "f"
    f.write_text("0123456789")

    with t.claim("flock excludes other processes of the mount, and its end lets them in"):
        p = holds(f, "fcntl.flock(fd, fcntl.LOCK_EX)")
        with open(f, "rb") as mine:
            eq(is_free(lambda: fcntl.flock(mine, fcntl.LOCK_EX | fcntl.LOCK_NB)), False)
            eq(is_free(lambda: fcntl.flock(mine, fcntl.LOCK_SH | fcntl.LOCK_NB)), False)
            end(p)
            fcntl.flock(mine, fcntl.LOCK_EX)

    with t.claim("fcntl locks exclude by range"):
        p = holds(f, "fcntl.lockf(fd, fcntl.LOCK_EX, 5, 2)")
        with open(f, "r+b") as mine:
            eq(is_free(lambda: fcntl.lockf(mine, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 3)), False)
            eq(is_free(lambda: fcntl.lockf(mine, fcntl.LOCK_EX | fcntl.LOCK_NB, 2, 0)), True)
            end(p)
            eq(is_free(lambda: fcntl.lockf(mine, fcntl.LOCK_EX | fcntl.LOCK_NB)), True)

    with t.claim("the flock command waits for its turn"):
        count = "n=$(cat count); echo $((n + 1)) > count"
        (m.path / "count").write_text("0\n")
        loop = f"for i in 1 2 3 4 5; do flock lock sh -c '{count}'; done"
        procs = [subprocess.Popen(["sh", "-c", loop], cwd=m.path) for _ in range(4)]
        for p in procs:
            eq(p.wait(LIMIT_S), 0)
        eq((m.path / "count").read_text(), "20\n")

    with t.claim("across mounts O_EXCL and mkdir have one winner"):
        def wins(make):
            try:
                make()
                return 1
            except FileExistsError:
                return 0

        for i in range(10):
            both = [m.path, other.path] if i % 2 else [other.path, m.path]
            eq(sum(wins(lambda d=d: os.close(os.open(d / f"lock{i}", os.O_CREAT | os.O_EXCL | os.O_WRONLY))) for d in both), 1)
            eq(sum(wins(lambda d=d: os.mkdir(d / f"lockdir{i}")) for d in both), 1)

    with t.claim("two processes share a sqlite database in its default journal mode"):
        path = m.path / "base.db"
        with contextlib.closing(sqlite3.connect(path)) as db, db:
            db.execute("create table counter (n integer)")
            db.execute("insert into counter values (0)")
            db.execute("create table t (who text, i integer)")
        procs = [subprocess.Popen([sys.executable, "-c", INSERTER, str(path), who]) for who in "ab"]
        eq([p.wait(LIMIT_S) for p in procs], [0, 0])
        for where in (m, other):  # the other mount, once nobody writes
            with contextlib.closing(sqlite3.connect(where.path / "base.db")) as db:
                eq(db.execute("select n from counter").fetchone()[0], 80)
                eq(db.execute("select count(distinct who || i) from t").fetchone()[0], 80)
                eq(db.execute("pragma integrity_check").fetchone()[0], "ok")
