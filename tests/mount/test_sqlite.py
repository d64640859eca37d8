"""test_sqlite.py - sqlite3 works in a mount, also when it or the mount is killed in the middle of a transaction, and from two processes."""
import pathlib
import sqlite3
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
from kvtest import Claims, Cluster, eq

N_ROWS, PER_TRANSACTION = 10000, 500

# Inserts whole transactions of rows until it is killed; says after each commit what is safe. argv: database, journal
# mode, cache size (small: rows go to the file before their commit).
WRITER = r'''
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=60)
db.execute(f"pragma journal_mode={sys.argv[2]}"); db.execute(f"pragma cache_size={sys.argv[3]}")
n = db.execute("select coalesce(max(a), -1) + 1 from t").fetchone()[0]
while True:
    db.execute("begin immediate")
    db.executemany("insert into t values (?, ?)", ((i, "row %d " % i + "x" * 200) for i in range(n, n + 300)))
    print("inserted", flush=True)
    db.execute("commit")
    n += 300
    print(n, flush=True)
'''

# Adds to a counter in transactions, as one of several processes.
ADDER = r'''
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=100)
for i in range(int(sys.argv[2])):
    db.execute("begin immediate")
    (n,) = db.execute("select n from counter").fetchone()
    db.execute("update counter set n = ?", (n + 1,))
    db.execute("commit")
'''


def connect(path):
    return sqlite3.connect(path, isolation_level=None, timeout=60)


def check(path, at_least, step):
    """The database is sound, and holds whole transactions, all that were told of among them."""
    db = connect(path)
    eq(db.execute("pragma integrity_check").fetchone(), ("ok",))
    (n, top) = db.execute("select count(*), coalesce(max(a), -1) + 1 from t").fetchone()
    db.close()
    eq((n == top, n % step, n >= at_least), (True, 0, True), f"{n} rows, {at_least} acknowledged")
    return n


def run(*args, **options):
    r = subprocess.run(["sqlite3", "-batch", *args], capture_output=True, text=True, timeout=100, check=True, **options)
    return r.stdout


def create(path, journal):
    db = connect(path)
    eq(db.execute(f"pragma journal_mode={journal}").fetchone(), (journal,))
    db.execute("create table t (a integer primary key, b text)")
    db.close()


class Writer:
    """WRITER in a process."""

    def __init__(self, path, journal, cache):
        command = [sys.executable, "-c", WRITER, str(path), journal, str(cache)]
        self.proc = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.acknowledged = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.proc.kill()
        self.proc.wait()
        self.proc.stdout.close()

    def run_into_transaction(self, n):
        """Until it is in the middle of the transaction after the n-th."""
        for line in self.proc.stdout:
            if line.strip().isdigit():
                self.acknowledged, n = int(line), n - 1
            elif n == 0:
                return
        raise AssertionError("the writer ended")

    def kill(self):
        self.proc.kill()
        self.proc.wait()
        for line in self.proc.stdout:
            if line.strip().isdigit():
                self.acknowledged = int(line)


with Claims() as t, Cluster(base_port=21820) as c:
    m = c.mount()
    mnt = m.path

    for journal in ("delete", "truncate", "persist", "wal"):
        with t.claim(f"10,000 inserts in transactions with journal_mode={journal} are there, and sound"):
            create(mnt / f"{journal}.db", journal)
            db = connect(mnt / f"{journal}.db")
            for n in range(0, N_ROWS, PER_TRANSACTION):
                db.execute("begin")
                db.executemany("insert into t values (?, ?)", ((i, f"row {i}") for i in range(n, n + PER_TRANSACTION)))
                db.execute("commit")
            db.execute("begin")
            db.execute("delete from t where a % 2 = 0")
            db.execute("rollback")
            db.execute("vacuum")
            db.close()
            eq(check(mnt / f"{journal}.db", N_ROWS, PER_TRANSACTION), N_ROWS)

    with t.claim("sqlite3 the program imports, dumps and restores"):
        sql = "create table x (a, b); with recursive n(i) as (select 1 union all select i + 1 from n where i < 5000) " \
              "insert into x select i, 'v' || i from n; create index xa on x (a);"
        run(str(mnt / "p.db"), sql)
        dump = run(str(mnt / "p.db"), ".dump")
        run(str(mnt / "q.db"), input=dump)
        eq(run(str(mnt / "q.db"), "select count(*), sum(a) from x; pragma integrity_check;"), "5000|12502500\nok\n")
        run(str(mnt / "q.db"), f".backup '{mnt / 'r.db'}'")
        eq(run(str(mnt / "r.db"), ".dump"), dump)

    for journal in ("delete", "wal"):
        with t.claim(f"kill -9 of the writer in the middle of a transaction ({journal}) leaves whole transactions"):
            path = mnt / f"killed-{journal}.db"
            create(path, journal)
            for n in range(3):
                with Writer(path, journal, 10 if n else -2000) as w:
                    w.run_into_transaction(n + 1)
                    w.kill()
                    check(path, w.acknowledged, 300)

    with t.claim("two processes of one mount take turns (default journal), and no update is lost"):
        db = connect(mnt / "two.db")
        db.execute("create table counter (n integer)")
        db.execute("insert into counter values (0)")
        procs = [subprocess.Popen([sys.executable, "-c", ADDER, str(mnt / "two.db"), "40"]) for _ in range(2)]
        eq([p.wait(100) for p in procs], [0, 0])
        eq(db.execute("select n from counter").fetchone(), (80,))
        eq(db.execute("pragma integrity_check").fetchone(), ("ok",))
        db.close()

    with t.claim("kill -9 of the mount in the middle of a transaction leaves whole transactions, all acknowledged ones among them"):
        path = mnt / "mount-killed.db"
        create(path, "delete")
        for cache in (-2000, 10):
            with Writer(path, "delete", cache) as w:
                w.run_into_transaction(3)
                m.kill9()
                w.proc.wait(60)
                w.kill()
                m.start()
                check(path, w.acknowledged, 300)
