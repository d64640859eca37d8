"""test_lifecycle.py - starting, stopping and refusing: kvfs as mount(8), init systems and people at a terminal use it."""
import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
from kvtest import KVFS, Claims, Cluster, Mount, eq, is_mounted, wait_until

LIMIT_S = 20


def kvfs(*args, **kw):
    return subprocess.run([KVFS, *map(str, args)], capture_output=True, timeout=LIMIT_S, text=True, check=False, **kw)


def refused(code, text, *args):
    r = kvfs(*args)
    if r.returncode != code or text not in r.stderr:
        raise AssertionError(f"{args}: {r.returncode} {r.stderr!r}, want {code} and {text!r}")


def servers(path):
    """Processes that serve the mount at path."""
    found = []
    for p in pathlib.Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            argv = (p / "cmdline").read_bytes().split(b"\0") if p.name.isdigit() else []
            if argv and argv[0] == os.fsencode(KVFS) and os.fsencode(path) in argv:
                found.append(int(p.name))
    return found


@contextlib.contextmanager
def background(mnt, *args, command=None):
    """A mount that went into the background; unmounted at the end, whatever happens."""
    mnt.mkdir(exist_ok=True)
    try:
        r = subprocess.run(command or [KVFS, str(c.config_path), str(mnt), *args], capture_output=True, timeout=LIMIT_S, text=True)
        eq((r.returncode, r.stderr), (0, ""))
        yield mnt
    finally:
        if is_mounted(mnt):
            subprocess.run(["fusermount3", "-u", "-z", str(mnt)], check=False)
        for pid in servers(mnt):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def the_server(mnt):
    """The one that was there before may still be ending."""
    wait_until(lambda: len(servers(mnt)) == 1, LIMIT_S, "one process serves it")
    return servers(mnt)[0]


with Claims() as t, Cluster(base_port=18370) as c:
    mnt = c.dir / "mnt"
    mnt.mkdir()

    with t.claim("--help and --version are answered on stdout"):
        for flag, text in (("--help", "usage: kvfs"), ("-h", "usage: kvfs"), ("--version", "kvfs "), ("-V", "kvfs ")):
            r = kvfs(flag)
            eq((r.returncode, r.stderr, r.stdout.startswith(text)), (0, "", True), flag)

    with t.claim("a wrong command line is refused with 1 and the reason"):
        refused(1, "CONFIG and MOUNTPOINT")
        refused(1, "CONFIG and MOUNTPOINT", c.config_path)
        refused(1, "too many", c.config_path, mnt, "more")
        refused(1, "unknown flag -q", c.config_path, mnt, "-q")
        refused(1, "did you mean 'allow_other'?", c.config_path, mnt, "-o", "ro,alow_other")
        refused(1, "did you mean 'attr_timeout'?", c.config_path, mnt, "-o", "attrtimeout=1")
        refused(1, "uid: 'me'", c.config_path, mnt, "-o", "uid=me")
        refused(1, "umask: '999'", c.config_path, mnt, "-o", "umask=999")
        refused(1, "timeout: 'soon'", c.config_path, mnt, "-o", "timeout=soon")
        refused(1, "ro takes no value", c.config_path, mnt, "-o", "ro=1")

    with t.claim("a bad config or mountpoint is refused with 32 and the reason"):
        refused(32, "No such file", c.dir / "none.json", mnt)
        bad = c.dir / "bad.json"
        bad.write_text(json.dumps({**c.config, "replication_factor": 9}))
        refused(32, "replication_factor", bad, mnt)
        refused(32, "No such file", c.config_path, c.dir / "nowhere")
        refused(32, "Not a directory", c.config_path, c.config_path)

    with t.claim("without -f the command returns when the mount answers, and the process is on its own"):
        with background(mnt):
            eq((is_mounted(mnt), os.listdir(mnt)), (True, []))
            (mnt / "f").write_text("x")
            pid = the_server(mnt)
            eq((os.getsid(pid), os.readlink(f"/proc/{pid}/cwd"), os.readlink(f"/proc/{pid}/fd/2")), (os.getsid(pid), "/", "/dev/null"))
            eq(os.getsid(pid) != os.getsid(0), True)

    with t.claim("umount ends the process"):
        with background(mnt):
            pid = the_server(mnt)
            eq((mnt / "f").read_text(), "x")
            subprocess.run(["umount", mnt], check=True, timeout=LIMIT_S)
            wait_until(lambda: servers(mnt) == [], LIMIT_S, "the process ends")

    with t.claim("relative paths work in the background"):
        with background(mnt, command=["bash", "-c", f"cd {c.dir} && {KVFS} {c.config_path.name} mnt"]):
            eq((mnt / "f").read_text(), "x")
            for pid in servers("mnt"):
                os.kill(pid, signal.SIGTERM)
            wait_until(lambda: not is_mounted(mnt), LIMIT_S, "unmounted")

    with t.claim("mount -t fuse.kvfs and its usual options work"):
        helper = shutil.which("mount.fuse3") or shutil.which("mount.fuse") or "/sbin/mount.fuse3"
        if not os.path.exists(helper) or os.getuid() != 0:
            print("# no mount.fuse here: its call is made by hand")
            call = [KVFS, str(c.config_path), str(mnt), "-o", "rw,noatime,_netdev,x-systemd.automount,dev,suid"]
        else:
            path = f"{pathlib.Path(KVFS).parent}:{os.environ['PATH']}"
            call = ["env", f"PATH={path}", helper, f"{KVFS}#{c.config_path}", str(mnt), "-o", "rw,noatime,_netdev,dev,suid"]
        with background(mnt, command=call):
            eq((mnt / "f").read_text(), "x")
            line = next(x for x in open("/proc/self/mounts", encoding="utf-8") if f" {mnt} " in x)
            eq((line.split()[0], line.split()[2]), (str(c.config_path), "fuse.kvfs"))

    with t.claim("a read-only mount refuses writes"):
        with background(mnt, "-o", "ro"):
            r = subprocess.run(["bash", "-c", "echo y > f"], cwd=mnt, capture_output=True, text=True, check=False)
            eq("Read-only" in r.stderr, True)
            eq((mnt / "f").read_text(), "x")

    with t.claim("uid, gid and umask are those of keys that carry none"):
        c.http("PUT", "/kv/plain", b"1")
        with background(mnt, "-o", "uid=1234,gid=55,umask=027"):
            st = os.stat(mnt / "plain")
            eq((st.st_uid, st.st_gid, oct(st.st_mode)), (1234, 55, oct(0o100640)))
            eq(os.stat(mnt / "f").st_uid, os.getuid())

    with t.claim("SIGTERM stores what is open and dirty, unmounts and ends with 0"):
        m = Mount(c.config_path, mnt)
        try:
            fd = os.open(mnt / "dirty", os.O_CREAT | os.O_WRONLY)
            os.write(fd, b"not closed")
            eq(c.http("GET", "/kv/dirty").status, 404)
            eq(m.stop(), 0)
            eq((is_mounted(mnt), c.http("GET", "/kv/dirty").body), (False, b"not closed"))
            with contextlib.suppress(OSError):
                os.close(fd)
        finally:
            m.close()

    with t.claim("SIGTERM without a quorum ends in bounded time, and the log names what was not stored"):
        m = Mount(c.config_path, mnt, ["timeout=2"])
        try:
            fd = os.open(mnt / "lost", os.O_CREAT | os.O_WRONLY)
            os.write(fd, b"x")
            c.sigstop(1)
            c.sigstop(2)
            began = time.monotonic()
            eq(m.stop(LIMIT_S), 0)
            eq(time.monotonic() - began < 13, True)
            eq("not_stored key=lost" in m.log(), True)
            with contextlib.suppress(OSError):
                os.close(fd)
        finally:
            m.close()
            c.sigcont(1)
            c.sigcont(2)

    with t.claim("readiness is told to the service manager"):
        path = str(c.dir / "notify")
        with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as s:
            s.bind(path)
            s.settimeout(LIMIT_S)
            os.environ["NOTIFY_SOCKET"] = path
            try:
                with Mount(c.config_path, mnt):
                    eq(s.recv(100), b"READY=1")
            finally:
                del os.environ["NOTIFY_SOCKET"]

    with t.claim("without a quorum nothing is mounted, and the reason is told in time"):
        c.kill9(1, 2)
        began = time.monotonic()
        refused(32, "quorum", c.config_path, mnt, "-o", "timeout=1.5")
        eq((is_mounted(mnt), servers(mnt)), (False, []))
        eq(time.monotonic() - began < 4, True)
        c.start(1, 2)

    with t.claim("a mount point whose server was killed is refused with advice, and works after umount"):
        m = Mount(c.config_path, mnt)
        m.proc.kill()
        m.proc.wait()
        m.proc = None
        refused(32, "umount", c.config_path, mnt)
        m.close()
        with background(mnt):
            eq((mnt / "f").read_text(), "x")
