"""twins.py - runs a program in a directory of a mount and in a local one, and compares what it says and what it leaves."""
import hashlib
import os
import pathlib
import stat
import subprocess
import tempfile
import time

RUN_LIMIT_S = 120
# A time that a program set, not one that the moment of the run gave.
OLD_NS = 24 * 3600 * 10**9


def describe(path, now_ns):
    """What a user would compare of one file."""
    st = os.lstat(path)
    kind = stat.S_IFMT(st.st_mode)
    out = {"type": kind >> 12, "mode": oct(stat.S_IMODE(st.st_mode)), "owner": (st.st_uid, st.st_gid)}
    out["mtime"] = st.st_mtime_ns if now_ns - st.st_mtime_ns > OLD_NS else "recent"
    if kind == stat.S_IFREG:
        out["size"] = st.st_size
        out["bytes"] = hashlib.md5(pathlib.Path(path).read_bytes()).hexdigest()
    if kind == stat.S_IFLNK:
        out["to"] = os.readlink(path)
    else:
        out["xattrs"] = {n: os.getxattr(path, n) for n in os.listxattr(path) if n.startswith("user.")}
    return out


def tree(top):
    """Everything below top, by its path there."""
    found, now_ns = {}, time.time_ns()
    for at, dirs, files in os.walk(top):
        for name in dirs + files:
            path = os.path.join(at, name)
            found[os.path.relpath(path, top)] = describe(path, now_ns)
    return found


def lost_dir_time(want):
    """That something in a directory changed is known for as long as the kernel remembers it: any test may make it forget."""
    return want["type"] == stat.S_IFDIR >> 12 and want["mtime"] == "recent"


def differences(a, b):
    """Of two trees: a line for each path that is not the same in both."""
    lines = []
    for path in sorted(a.keys() | b.keys()):
        if path not in a or path not in b:
            lines.append(f"{path}: only {'here' if path in a else 'there'}")
        else:
            lines += [f"{path}: {k} {a[path].get(k)!r}, not {b[path].get(k)!r}"
                      for k in sorted(a[path].keys() | b[path].keys())
                      if a[path].get(k) != b[path].get(k) and not (k == "mtime" and lost_dir_time(b[path]))]
    return lines


class Twins:
    """Pairs of directories with one path, so that what programs print of it is the same."""

    def __init__(self, mount, scratch, env=None):
        self.mount, self.scratch, self.env, self.n = pathlib.Path(mount), pathlib.Path(scratch), env or {}, 0

    def same(self, command):
        """Runs it in both; what differs is the AssertionError. Where it fails locally, nothing was proved."""
        self.n += 1
        runs = []
        for side, top in (("mount", self.mount), ("local", self.scratch / "local")):
            work = top / f"work-{self.n}"
            work.mkdir(parents=True)
            out = pathlib.Path(tempfile.mkdtemp(dir=self.scratch))
            r = subprocess.run(command, cwd=work, env={**os.environ, "LC_ALL": "C.UTF-8", **self.env, "OUT": str(out)},
                               stdin=subprocess.DEVNULL, capture_output=True, timeout=RUN_LIMIT_S, check=False)
            text = [(s.decode(errors="replace").replace(str(work), "WORK").replace(str(out), "OUT")) for s in (r.stdout, r.stderr)]
            runs.append((r.returncode, text, tree(work)))
        (code, text, files), (want_code, want_text, want_files) = runs
        if want_code != 0:
            raise AssertionError(f"it does not work in a local directory: exit {want_code}: {want_text[1][-300:]}")
        problems = [] if code == 0 else [f"exit {code}"]
        for got, want in zip(text, want_text):
            problems += [f"printed {a!r}, not {b!r}" for a, b in pair_lines(got, want) if a != b]
        problems += differences(files, want_files)
        if problems:
            raise AssertionError(f"{len(problems)} differences from a local directory: " + "; ".join(problems[:6]))


def pair_lines(a, b):
    a, b = a.splitlines(), b.splitlines()
    n = max(len(a), len(b))
    return zip(a + [None] * (n - len(a)), b + [None] * (n - len(b)))
