"""test_interrupt.py - waits that end: Ctrl-C on every kind of call while no node answers, signals that must not end one,
umount and SIGTERM with calls stuck, more stuck calls than there are threads."""
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
from kvtest import Claims, Cluster, Mount, eq, is_mounted, wait_until

LIMIT_S = 20
STUCK_S = 60  # the mounts' timeout: nothing ends by itself within a test
SOON_S = 1 if not os.environ.get("KVFS") else 5  # "at once", on a machine that has other things to do

# Each is done by a process of its own in the folder `d`: what comes before "---" while the nodes answer, the rest when they do not.
CALLS = {
    "lookup": "--- os.stat('nothing')",
    "open": "fd = os.open('file', os.O_RDONLY) --- os.open(f'/proc/self/fd/{fd}', os.O_RDONLY)",
    "create": "--- os.open('new', os.O_CREAT | os.O_EXCL | os.O_WRONLY)",
    "read": "fd = os.open('large', os.O_RDONLY); os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM) --- os.pread(fd, 4096, 9 << 20)",
    "write": "fd = os.open('large', os.O_WRONLY) --- os.pwrite(fd, b'x', 3 << 20)",
    "close": "fd = os.open('closed', os.O_CREAT | os.O_WRONLY); os.write(fd, b'x') --- os.close(fd)",
    "fsync": "fd = os.open('synced', os.O_CREAT | os.O_WRONLY); os.write(fd, b'x') --- os.fsync(fd)",
    "mmap": "import mmap; fd = os.open('large', os.O_RDONLY); m = mmap.mmap(fd, 0, prot=mmap.PROT_READ) --- m[9 << 20]",
    "readdir": "--- os.listdir('.')",
    "chmod": "os.stat('file') --- os.chmod('file', 0o600)",
    "truncate": "fd = os.open('large', os.O_RDWR) --- os.ftruncate(fd, 5)",
    "utime": "os.stat('file') --- os.utime('file')",
    "rename": "os.stat('file') --- os.rename('file', 'other')",
    "rename of a directory": "os.stat('dir') --- os.rename('dir', 'dir9')",
    "unlink": "os.stat('file') --- os.unlink('file')",
    "mkdir": "--- os.mkdir('newdir')",
    "rmdir": "os.stat('empty') --- os.rmdir('empty')",
    "symlink": "--- os.symlink('target', 'newlink')",
    "readlink": "os.lstat('link') --- os.readlink('link')",
    "mkfifo": "--- os.mkfifo('newfifo')",
    "getxattr": "os.stat('file') --- os.getxattr('file', 'user.x')",
    "setxattr": "os.stat('file') --- os.setxattr('file', 'user.x', b'1')",
    "exit with a dirty file": "fd = os.open('left', os.O_CREAT | os.O_WRONLY); os.write(fd, b'x') --- os.stat('nothing')",
    "exec": "os.stat('program') --- os.execv('program', ['program'])",
}


# As with a local disk, who waits for a page ends only by a signal that kills; and what a process left dirty is stored at its end.
NOT_BY_HANDLERS = ("read", "mmap", "fsync", "exit with a dirty file")


INTERRUPTED = 99  # the exit code of one whose call ended with EINTR


class Doer:
    """A process that gets ready, waits for a word, and then makes a call."""

    def __init__(self, folder, what, prelude=""):
        before, after = what.split("---")
        code = (f"import os, signal, sys\nos.chdir({str(folder)!r})\n{prelude}\n{before.strip()}\nprint('ready', flush=True)\n"
                f"sys.stdin.readline()\ntry:\n    {after.strip()}\nexcept (InterruptedError, KeyboardInterrupt):\n"
                f"    os._exit({INTERRUPTED})\nprint('done', flush=True)\n")
        self.proc = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                     stderr=subprocess.PIPE)
        line = self.proc.stdout.readline()
        if line != b"ready\n":
            raise AssertionError(f"{what}: {self.proc.communicate()[1].decode()[-300:]}")

    def go(self):
        self.proc.stdin.write(b"\n")
        self.proc.stdin.flush()

    def waits(self):
        """In the kernel, for the mount."""
        where = self.where()
        return "request_wait_answer" in where or "folio_wait" in where

    def where(self):
        with contextlib.suppress(OSError):
            return pathlib.Path(f"/proc/{self.proc.pid}/stack").read_text(encoding="ascii")
        return ""

    def end(self, limit_s):
        """The exit code; negative: the signal."""
        return self.proc.wait(limit_s)

    def close(self):
        self.proc.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.proc.wait(LIMIT_S)
        for f in (self.proc.stdin, self.proc.stdout, self.proc.stderr):
            with contextlib.suppress(OSError):
                f.close()


def stopped(pid):
    return all(f.read_text(encoding="ascii").rsplit(")", 1)[1].split()[0] == "T" for f in pathlib.Path(f"/proc/{pid}/task").glob("*/stat"))


@contextlib.contextmanager
def frozen(cluster):
    for i in cluster.nodes():
        cluster.sigstop(i)
    wait_until(lambda: all(stopped(cluster.pid(i)) for i in cluster.nodes()), LIMIT_S, "all threads of all nodes have stopped")
    try:
        yield
    finally:
        for i in cluster.nodes():
            cluster.sigcont(i)
        cluster.wait_alive()


def prepare(d, what):
    """A folder of its own for each call: the kernel holds others up in the folder where one is being made or removed."""
    d.mkdir(parents=True)
    makers = {
        "'file'": lambda: (d / "file").write_text("text"),
        "'large'": lambda: (d / "large").write_bytes(bytes(10 << 20)),
        "'dir'": lambda: ((d / "dir").mkdir(), (d / "dir" / "f").write_text("x")),
        "'empty'": lambda: (d / "empty").mkdir(),
        "'link'": lambda: (d / "link").symlink_to("file"),
        "'program'": lambda: ((d / "program").write_text("#!/bin/sh\n"), (d / "program").chmod(0o755)),
    }
    for name, make in makers.items():
        if name in what:
            make()


def answers(path):
    with contextlib.suppress(OSError):
        os.listdir(path)
        return True
    return False


def interrupt_each(m, folder, prelude, sig, calls):
    """What became of every call: its exit code and the seconds until its end."""
    wait_until(lambda: answers(m.path), LIMIT_S, "the mount answers")
    for name, what in calls.items():
        prepare(folder / name, what)
    doers = {name: Doer(folder / name, what, prelude) for name, what in calls.items()}
    ended = {}
    try:
        with frozen(c):
            for d in doers.values():
                d.go()
            for name, d in doers.items():
                try:
                    wait_until(d.waits, LIMIT_S, f"{name} waits")
                except AssertionError as e:
                    raise AssertionError(f"{e}: {d.proc.poll()} {d.where()}")
            for name, d in doers.items():
                began = time.monotonic()
                d.proc.send_signal(sig)
                try:
                    ended[name] = d.end(LIMIT_S), time.monotonic() - began
                except subprocess.TimeoutExpired:
                    ended[name] = None, LIMIT_S
    finally:
        for d in doers.values():
            d.close()
    return ended


with Claims() as t, Cluster(base_port=21700, fsync="never") as c:
    m = c.mount(options=[f"timeout={STUCK_S}", "attr_timeout=60"])

    for title, sig, prelude, want in (
        ("Ctrl-C ends a process that waits in {}", signal.SIGINT, "signal.signal(signal.SIGINT, signal.SIG_DFL)", -signal.SIGINT),
        ("kill -9 ends a process that waits in {}", signal.SIGKILL, "", -signal.SIGKILL),
        ("{} ends with EINTR where SIGINT has a handler", signal.SIGINT, "", INTERRUPTED),
    ):
        calls = {k: v for k, v in CALLS.items() if (want != INTERRUPTED or k not in NOT_BY_HANDLERS) and
                 (sig != signal.SIGKILL or k in ("lookup", "read", "close", "readdir", "rename"))}
        ended = interrupt_each(m, m.path / str(want), prelude, sig, calls)
        for name, (code, took) in ended.items():
            with t.claim(title.format(name)):
                eq((code, took < SOON_S), (want, True), f"{took:.2f} s")

    with t.claim("programs with interval timers see no error of finished work, and it does finish"):
        wait_until(lambda: answers(m.path), LIMIT_S, "the mount answers")
        program = """
import os, signal
os.chdir(MOUNT)
for sig, which in ((signal.SIGALRM, signal.ITIMER_REAL), (signal.SIGPROF, signal.ITIMER_PROF)):
    signal.signal(sig, lambda *_: None)
    signal.siginterrupt(sig, RESTART)
    signal.setitimer(which, 0.002, 0.002)
for i in range(15):
    fd = os.open(f'timed{i}', os.O_CREAT | os.O_RDWR)
    assert os.write(fd, bytes(300000)) == 300000
    os.fsync(fd)
    os.close(fd)
    fd = os.open(f'timed{i}', os.O_RDONLY)
    n = 0
    while part := os.read(fd, 65536):
        n += len(part)
    assert n == 300000, n
    os.close(fd)
    os.mkdir(f'timeddir{i}')
    os.rename(f'timed{i}', f'timeddir{i}/x')
    assert len(os.listdir(f'timeddir{i}')) == 1
    os.unlink(f'timeddir{i}/x')
    os.rmdir(f'timeddir{i}')
signal.setitimer(signal.ITIMER_REAL, 0)  # Python's handler goes before the process does
signal.setitimer(signal.ITIMER_PROF, 0)
"""
        for restart in ("False", "True"):  # handlers with SA_RESTART, and without
            r = subprocess.run([sys.executable, "-c", program.replace("RESTART", restart).replace("MOUNT", repr(str(m.path)))], capture_output=True, text=True, timeout=3 * LIMIT_S, check=False)
            eq((r.returncode, r.stderr), (0, ""), restart)

    m.close()

    with t.claim("more stuck calls than there were threads hold up neither others nor .kvfs, and are told of"):
        m = c.mount("crowd", options=[f"timeout={STUCK_S}"])
        (m.path / "large").write_bytes(bytes(10 << 20))
        fd = os.open(m.path / "large", os.O_RDONLY)
        with frozen(c):
            procs = [subprocess.Popen(["stat", str(m.path / f"stuck{i}")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for i in range(100)]
            try:
                def n_calls():
                    return json.loads((m.path / ".kvfs" / "status").read_text())["n_calls"]

                wait_until(lambda: n_calls() >= 100, LIMIT_S, "all of them wait")
                began = time.monotonic()
                n_calls()
                os.statvfs(m.path)
                eq(os.pread(fd, 1, 0), b"\0")
                eq(time.monotonic() - began < SOON_S, True)
                procs[-1].send_signal(signal.SIGINT)
                eq(procs[-1].wait(LIMIT_S), -signal.SIGINT)
            finally:
                for p in procs:
                    p.kill()
                for p in procs:
                    p.wait(LIMIT_S)
        os.close(fd)
        m.close()

    with t.claim("umount returns, and the process ends, with readers stuck and with no node left"):
        for command in (["umount", "-l"], ["fusermount3", "-u", "-z"]):
            m = c.mount("gone", options=["timeout=3"])
            with frozen(c):
                p = subprocess.Popen(["stat", str(m.path / "stuck")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                wait_until(lambda: "request_wait_answer" in pathlib.Path(f"/proc/{p.pid}/stack").read_text(encoding="ascii"), LIMIT_S, "it waits")
                eq(subprocess.run(["fusermount3", "-u", str(m.path)], stderr=subprocess.DEVNULL, timeout=LIMIT_S, check=False).returncode != 0, True)
                eq(subprocess.run([*command, str(m.path)], timeout=LIMIT_S, check=False).returncode, 0)
                p.wait(LIMIT_S)
                eq(m.proc.wait(LIMIT_S), 0)
            m.close()
        m = c.mount("gone")
        with frozen(c):
            eq(subprocess.run(["fusermount3", "-u", str(m.path)], timeout=LIMIT_S, check=False).returncode, 0)
            eq(m.proc.wait(LIMIT_S), 0)
        m.close()

    with t.claim("SIGTERM ends calls that wait, names what was not stored and why, and the process"):
        m = c.mount("ended", options=[f"timeout={STUCK_S}"])
        fd = os.open(m.path / "unstored", os.O_CREAT | os.O_WRONLY)
        os.write(fd, b"x")
        with frozen(c):
            p = subprocess.Popen(["stat", str(m.path / "stuck")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            wait_until(lambda: "request_wait_answer" in pathlib.Path(f"/proc/{p.pid}/stack").read_text(encoding="ascii"), LIMIT_S, "it waits")
            eq(m.stop(3 * LIMIT_S), 0)
            eq(p.wait(LIMIT_S) != 0, True)
            line = next(x for x in m.log().splitlines() if " not_stored key=unstored " in x)
            eq((is_mounted(m.path), len(line.split("reason=")[1]) > 5), (False, True), line)
        with contextlib.suppress(OSError):
            os.close(fd)
        m.close()

    with t.claim("a mount whose process was killed is removed by fusermount3 -u, and can be made again"):
        m = c.mount("killed")
        m.proc.kill()
        m.proc.wait()
        m.proc = None
        eq(subprocess.run(["fusermount3", "-u", str(m.path)], timeout=LIMIT_S, check=False).returncode, 0)
        with Mount(c.config_path, m.path) as again:
            (again.path / "f").write_text("x")
