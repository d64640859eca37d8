"""test_basic.py - the everyday commands on a mount, and the same keys over HTTP."""
import hashlib
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
from kvtest import Claims, Cluster, eq, soon


def sh(mnt, command):
    """What a shell prints; a failing command is a failed claim."""
    r = subprocess.run(["bash", "-euo", "pipefail", "-c", command], cwd=mnt.parent, capture_output=True, timeout=60)
    if r.returncode != 0:
        raise AssertionError(f"{command}: {r.returncode}: {r.stderr.decode(errors='replace')}")
    return r.stdout.decode()


def tree_of(path):
    """Every file and directory below path with a digest of its contents."""
    found = {}
    for here, dirs, files in os.walk(path):
        for name in dirs:
            found[os.path.relpath(os.path.join(here, name), path)] = "dir"
        for name in files:
            p = os.path.join(here, name)
            found[os.path.relpath(p, path)] = hashlib.sha256(pathlib.Path(p).read_bytes()).hexdigest()
    return found


def make_tree(path):
    for i in range(5):
        for k in range(6):
            d = path / f"dir {i}" / f"sub{k}"
            d.mkdir(parents=True)
            for n in range(5):
                (d / f"file{n}.h").write_bytes(os.urandom(100 + 997 * n))


with Claims() as t, Cluster(base_port=18300) as c:
    mnt = c.mount().path

    with t.claim("echo, cat and ls work"):
        eq(sh(mnt, "echo hello > mnt/greeting; cat mnt/greeting"), "hello\n")
        eq(sh(mnt, "ls mnt"), "greeting\n")
        eq("-rw-r--r--" in sh(mnt, "ls -la mnt"), True)

    with t.claim("cp and rm work"):
        eq(sh(mnt, "cp mnt/greeting mnt/copy; cat mnt/copy; rm mnt/copy; ls mnt"), "hello\ngreeting\n")

    with t.claim("pipes, sort and tee work below a new directory"):
        eq(sh(mnt, "mkdir -p mnt/a/b; seq 1000 | sort -R | tee mnt/a/b/n | wc -l; sort -n mnt/a/b/n | tail -1"), "1000\n1000\n")

    with t.claim("a directory is renamed with what is in it"):
        before = sh(mnt, "md5sum < mnt/a/b/n")
        eq(sh(mnt, "mv mnt/a mnt/z; cat mnt/z/b/n | md5sum"), before)
        eq(sh(mnt, "ls mnt"), "greeting\nz\n")

    with t.claim("what is written in the mount is read over HTTP from each node"):
        for i in c.nodes():
            eq(c.http("GET", "/kv/greeting", node=i).body, b"hello\n", f"node {i}")

    with t.claim("what is put over HTTP shows in the mount, owned by who mounted it"):
        eq(c.http("PUT", "/kv/from/http", b"bytes\0\xff", node=3).status, 201)
        eq(sh(mnt, "ls mnt/from"), "http\n")
        eq((mnt / "from/http").read_bytes(), b"bytes\0\xff")
        st = os.stat(mnt / "from/http")
        eq((oct(st.st_mode), st.st_uid, st.st_size), (oct(0o100644), os.getuid(), 7))
        eq(oct(os.stat(mnt / "from").st_mode), oct(0o040755))

    with t.claim("what is deleted over HTTP is gone from the mount, and its directory with it"):
        eq(c.http("DELETE", "/kv/from/http", node=2).status, 204)
        soon(lambda: os.path.exists(mnt / "from/http"), False)
        soon(lambda: sorted(os.listdir(mnt)), ["greeting", "z"])

    with t.claim("a copied tree is the same, by diff, tar and digest"):
        source = c.dir / "source"
        make_tree(source)
        sh(mnt, "cp -r source mnt/tree; diff -r source mnt/tree")
        eq(tree_of(mnt / "tree"), tree_of(source))
        eq(sh(mnt, "tar c -C mnt/tree . | tar t | sort | md5sum"), sh(mnt, "tar c -C source . | tar t | sort | md5sum"))

    with t.claim("rm -r removes it all"):
        sh(mnt, "rm -r mnt/tree mnt/z")
        eq(os.listdir(mnt), ["greeting"])
        eq([k["key"] for k in c.http("GET", "/kv?prefix=").json()["keys"]], ["greeting"])

    with t.claim("a file of 20 MiB round-trips, also in slices"):
        data = os.urandom(20 << 20)
        (mnt / "big").write_bytes(data)
        eq(hashlib.sha256((mnt / "big").read_bytes()).hexdigest(), hashlib.sha256(data).hexdigest())
        with open(mnt / "big", "rb", buffering=0) as f:
            for at in (0, (1 << 20) - 5, (7 << 20) + 12345, (20 << 20) - 3):
                f.seek(at)
                got = f.read(70000)
                eq(got == data[at:at + len(got)] and len(got) > 0, True, f"slice at {at}")
        eq(c.http("GET", "/kv/big", node=2).body == data, True)

    with t.claim("df tells space, and names may have 255 bytes"):
        st = os.statvfs(mnt)
        eq(st.f_namemax, 255)
        eq(st.f_blocks > 0 and 0 < st.f_bavail <= st.f_blocks, True)
