"""test_rename_crash.py - a directory is being moved when its mount is killed: what is left, and that mv completes it."""
import errno
import os
import pathlib
import random
import subprocess
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
from kvtest import Claims, Cluster, eq, wait_until

N = int(os.environ.get("RENAME_FILES", "120"))
KILLS = int(os.environ.get("RENAME_KILLS", "6"))
SEED = int(os.environ.get("RENAME_SEED", str(random.SystemRandom().randrange(1 << 32))))
WAYS = {
    "mv old new": lambda m: subprocess.run(["mv", "old", "new"], cwd=m).returncode,
    "mv -T old new": lambda m: subprocess.run(["mv", "-T", "old", "new"], cwd=m).returncode,
    "rename(2)": lambda m: os.rename(m / "old", m / "new") or 0,
}


def contents():
    """What the tree has: path below it, bytes."""
    return {f"{('', 'sub/', 'sub/deep/')[i % 3]}f{i}": b"%d" % i * (i % 50 * 100 + 1) for i in range(N)}


def keys_below(c, prefix):
    keys, after = [], ""
    while True:
        page = c.http("GET", f"/kv?prefix={prefix}&limit=1000&start_after={after}").json()
        keys += [k["key"] for k in page["keys"]]
        if not page.get("next"):
            return keys
        after = page["next"]


def make_tree(m, want):
    os.makedirs(m / "old/sub/deep")
    os.chmod(m / "old", 0o750)
    for name, data in want.items():
        (m / "old" / name).write_bytes(data)


def check_tree(m, want):
    """All under the new name, and nothing under the old one."""
    eq(sorted(os.listdir(m)), ["new"])
    eq(oct((m / "new").stat().st_mode & 0o777), oct(0o750))
    got = {str(p.relative_to(m / "new")): p.read_bytes() for p in (m / "new").rglob("*") if p.is_file()}
    eq(got.keys() - want.keys(), set())
    eq(want.keys() - got.keys(), set())
    eq([name for name in want if got[name] != want[name]], [])


def whole(m, want):
    """Each file under its old or its new name, whole; (how many only old, how many new)."""
    n = [0, 0]
    for name, data in want.items():
        found = [p for p in (m / "old" / name, m / "new" / name) if p.exists()]
        eq(bool(found), True, f"{name} is somewhere")
        eq([p for p in found if p.read_bytes() != data], [], f"{name} is whole")
        n[0] += len(found) == 1 and found[0].parts[len(m.parts)] == "old"
        n[1] += len(found) == 1 and found[0].parts[len(m.parts)] == "new"
    return n


def kill_in_the_middle(c, mount, left_max):
    """mv, and kill -9 of the mount when only so many keys are left under the old name."""
    mv = subprocess.Popen(["mv", "old", "new"], cwd=mount.path, stderr=subprocess.DEVNULL)
    wait_until(lambda: mv.poll() is not None or len(keys_below(c, "old/")) <= left_max, 60, "keys move")
    mount.kill9()
    mv.wait(30)


with Claims() as t, Cluster(base_port=21600) as c:
    mount = c.mount()
    m = mount.path
    want = contents()
    rng = random.Random(SEED)
    print(f"# RENAME_SEED={SEED}", flush=True)
    cut = 0

    for way, mv in WAYS.items():
        with t.claim(f"the mount is killed in the middle of mv: nothing is lost or torn, and {way} completes it"):
            for _ in range(max(1, KILLS // len(WAYS))):
                make_tree(m, want)
                kill_in_the_middle(c, mount, rng.randrange(N + 3))
                mount.start()
                old, new = whole(m, want)
                cut += 0 < new < N
                if (m / "old").exists():
                    eq(mv(m), 0)
                check_tree(m, want)
                subprocess.run(["rm", "-r", m / "new"], check=True)

    with t.claim("the kills did come in the middle of a move"):
        eq(cut > 0, True)

    with t.claim("it is killed again and again, and completed at last"):
        make_tree(m, want)
        for k in range(4):
            kill_in_the_middle(c, mount, N * (3 - k) // 4)
            mount.start()
            whole(m, want)
        if (m / "old").exists():
            os.rename(m / "old", m / "new")
        check_tree(m, want)
        subprocess.run(["rm", "-r", m / "new"], check=True)

    with t.claim("another mount completes it, with open files"):
        other = c.mount("other")
        make_tree(m, want)
        kill_in_the_middle(c, mount, N // 2)
        whole(other.path, want)
        left = [name for name in want if (other.path / "old" / name).exists()]
        with open(other.path / "old" / left[0], "ab") if left else open(os.devnull, "ab") as f:
            f.write(b"more")
            if left:
                os.rename(other.path / "old", other.path / "new")
                want[left[0]] += b"more"
        check_tree(other.path, want)
        mount.start()
        check_tree(m, want)
        subprocess.run(["rm", "-r", m / "new"], check=True)
        want = contents()

    with t.claim("a move that is interrupted by Ctrl-C is completed by the same command"):
        make_tree(m, want)
        mv = subprocess.Popen(["mv", "old", "new"], cwd=m, stderr=subprocess.DEVNULL)
        wait_until(lambda: mv.poll() is not None or len(keys_below(c, "old/")) <= N - N // 4, 60, "keys move")
        mv.send_signal(2)
        mv.wait(10)
        whole(m, want)
        if (m / "old").exists():
            eq(subprocess.run(["mv", "old", "new"], cwd=m).returncode, 0)
        check_tree(m, want)
        subprocess.run(["rm", "-r", m / "new"], check=True)

    with t.claim("two mounts that move one file to two names: one gets it, the other hears ENOENT, 25 times"):
        def take(mnt, i, name, got):
            try:
                os.rename(mnt / f"job{i}", mnt / name)
                got.append("won")
            except OSError as e:
                got.append(errno.errorcode[e.errno])

        for i in range(25):
            (m / f"job{i}").write_bytes(b"%d" % i)
            got = []
            threads = [threading.Thread(target=take, args=(mnt, i, f"taken{k}", got))
                       for k, mnt in enumerate((m, other.path))]
            for th in threads:
                th.start()
            for th in threads:
                th.join()
            eq(sorted(got), ["ENOENT", "won"], f"round {i}")
            eq(len([1 for k in range(2) if (m / f"taken{k}").exists()]), 1, f"round {i}")
            for k in range(2):
                (m / f"taken{k}").unlink(missing_ok=True)

    with t.claim("two directories moved to one name at once are never mixed: one gets it, 8 times"):
        def move(mnt, i, k, got):
            try:
                os.rename(mnt / f"dir{i}.{k}", mnt / f"one{i}")
                got.append("won")
            except OSError as e:
                got.append(errno.errorcode[e.errno])

        for i in range(8):
            for k in range(2):
                os.mkdir(m / f"dir{i}.{k}")
                for f in range(3):
                    (m / f"dir{i}.{k}" / f"{k}.{f}").write_bytes(b"x")
            got = []
            threads = [threading.Thread(target=move, args=(mnt, i, k, got)) for k, mnt in enumerate((m, other.path))]
            for th in threads:
                th.start()
            for th in threads:
                th.join()
            eq(got.count("won"), 1, f"round {i}: {got}")
            eq(len({name[0] for name in os.listdir(m / f"one{i}")}), 1, f"round {i}")

    with t.claim("a log is moved away by one mount while shells of both append to it: no line is lost or doubled"):
        script = 'for i in $(seq 40); do echo "$1 $i" >> log; sleep 0.02; done'
        shells = [subprocess.Popen(["bash", "-ec", script, "sh", f"s{k}"], cwd=(m, other.path)[k % 2]) for k in range(4)]

        def rotate(i):
            try:
                os.rename(m / "log", m / f"log.{i}")
            except FileNotFoundError:
                return True
            except OSError as e:
                eq(e.errno, errno.EBUSY)  # a slow machine, on which there never was a pause
                return False
            return True

        for i in range(20):
            if not rotate(i):
                break
            threading.Event().wait(0.03)
        eq([p.wait(120) for p in shells], [0] * 4)
        eq(rotate("last"), True)
        got = [line for p in m.glob("log*") for line in p.read_text().splitlines()]
        eq(len(got), len(set(got)), "none twice")
        eq(sorted(got), sorted(f"s{k} {i}" for k in range(4) for i in range(1, 41)))
