"""test_control.py - .kvfs, what a mount tells of itself: with nodes and without, and in nobody's way."""
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
from kvtest import Claims, Cluster, eq, wait_until

LIMIT_S = 20
SOON_S = 2  # what does not ask the cluster, on a machine that has other things to do


def run(*args, **kw):
    return subprocess.run([str(a) for a in args], capture_output=True, text=True, timeout=LIMIT_S, check=False, **kw)


def refused(*args):
    r = run(*args)
    if r.returncode == 0 or not any(x in r.stderr for x in ("Read-only", "not permitted", "Permission denied")):
        raise AssertionError(f"{args}: {r.returncode} {r.stderr!r}")


def quick(path):
    """Its text, which must be there at once."""
    began = time.monotonic()
    text = path.read_text()
    took = time.monotonic() - began
    if took > SOON_S:
        raise AssertionError(f"{path.name} took {took:.2f} s")
    return text


with Claims() as t, Cluster(base_port=21720, fsync="never") as c:
    m = c.mount()
    k = m.path / ".kvfs"
    (m.path / "dir").mkdir()
    (m.path / "dir" / "f").write_text("x")
    (m.path / "plain").write_text("x")

    with t.claim(".kvfs is there, and not listed"):
        eq(sorted(os.listdir(k)), ["config", "metrics", "replicas", "status", "version"])
        eq(sorted(os.listdir(m.path)), ["dir", "plain"])
        for command in (("find", m.path), ("du", "-a", m.path), ("ls", "-laR", m.path), ("grep", "-r", "version", m.path)):
            r = run(*command)
            eq((".kvfs" in r.stdout, r.stderr), (False, ""), command)

    with t.claim("version, config and status say what they should"):
        eq(run("cat", k / "version").stdout, run(os.environ.get("KVFS", "build/fs/kvfs"), "--version").stdout.split()[1] + "\n")
        eq({f: c.config[f] for f in ("nodes", "replication_factor")}.items() <= json.loads(quick(k / "config")).items(), True)
        s = json.loads(quick(k / "status"))
        eq([(n["id"], n["addr"], n["alive"]) for n in s["nodes"]],
           [(f"node-{i}", f"localhost:{c.port(i)}", True) for i in c.nodes()])
        eq((s["mountpoint"], s["pid"], s["ring"]["total_vnodes"]), (str(m.path), m.proc.pid, 300))

    with t.claim("a mount can be made from the config of another"):
        r = run(os.environ.get("KVFS", "build/fs/kvfs"), k / "config", c.dir / "nowhere")
        eq("nowhere" in r.stderr, True, r.stderr)

    with t.claim("status names what is not stored yet, and calls that wait"):
        fd = os.open(m.path / "dirty", os.O_CREAT | os.O_WRONLY)
        os.write(fd, b"12345")
        s = json.loads(quick(k / "status"))
        eq([(d["key"], d["size"]) for d in s["files"]["dirty"]], [("dirty", 5)])
        os.close(fd)
        eq(json.loads(quick(k / "status"))["files"]["n_dirty"], 0)

    with t.claim("metrics count calls, errors and bytes"):
        def counts():
            lines = (line.rsplit(" ", 1) for line in quick(k / "metrics").splitlines() if not line.startswith("#"))
            return {name: float(v) for name, v in lines}

        before = counts()
        (m.path / "counted").write_bytes(bytes(1000))
        with contextlib.suppress(FileNotFoundError):
            os.stat(m.path / "none")
        after = counts()
        eq(after["kvfs_written_bytes_total"] - before.get("kvfs_written_bytes_total", 0), 1000)
        name = 'kvfs_call_errors_total{call="lookup",error="ENOENT"}'
        eq(after[name] > before.get(name, 0), True)
        eq([after[f'kvfs_peer_up{{node="node-{i}"}}'] for i in c.nodes()], [1, 1, 1])

    with t.claim("replicas/KEY is what the nodes answer, byte for byte"):
        for key, path in (("user:42", "user:42"), ("dir/f", "dir/f"), ("plain", "plain"), ("never%20stored", "never stored")):
            want = c.http("GET", f"/replicas/{key}").body
            got = (k / "replicas" / path).read_bytes()
            eq(got, want)
            eq(os.stat(k / "replicas" / path).st_size, len(want))
            eq(run("cmp", k / "replicas" / path, "-", input=want.decode()).returncode, 0)

    with t.claim("keys of that name are reachable beside it, and not lost"):
        keys = {".kvfs": "%2Ekvfs/%00key", ".kvfs/status": "%2Ekvfs/status", "%252Ekvfs": "%252Ekvfs", "sub/.kvfs": "sub/.kvfs"}
        for key in keys:
            eq(c.http("PUT", f"/kv/{key}", key.encode()).status, 201)
        for key, path in keys.items():
            wait_until((m.path / path).exists, LIMIT_S, f"{path} is there")
            eq((m.path / path).read_bytes(), key.encode(), key)
        wait_until(lambda: {"%2Ekvfs", "%252Ekvfs"} <= set(os.listdir(m.path)), LIMIT_S, "they are listed")
        eq(json.loads(quick(k / "status"))["version"] != "", True)
        (m.path / "sub" / "another").mkdir()
        (m.path / "sub" / "another" / ".kvfs").write_text("mine")
        eq(c.http("GET", "/kv/sub/another/.kvfs").body, b"mine")

    with t.claim("nothing in it can be changed, and what tries fails cleanly"):
        (m.path / "moved").write_text("x")
        for command in (("sh", "-c", f"echo x > {k}/status"), ("sh", "-c", f"echo x >> {k}/config"), ("touch", k / "new"), ("mkdir", k / "new"),
                        ("rm", "-f", k / "status"), ("rmdir", k / "replicas"), ("mv", k, m.path / "other"), ("mv", m.path / "moved", k),
                        ("mv", k / "version", m.path), ("ln", "-s", "x", k / "new"), ("chmod", "777", k / "status"), ("chown", "1", k),
                        ("truncate", "-s", "0", k / "metrics"), ("setfattr", "-n", "user.x", "-v", "1", k / "status")):
            if command[0] == "setfattr" and not os.path.exists("/usr/bin/setfattr"):
                continue
            refused(*command)
        r = run("rm", "-rf", k)
        eq((r.returncode != 0, sorted(os.listdir(k))), (True, ["config", "metrics", "replicas", "status", "version"]))
        eq("ircular" in r.stderr, False)
        eq(os.listxattr(k / "status"), [])

    with t.claim("its files are copied whole, by read and by copy_file_range"):
        for name in ("config", "version", "status"):
            eq(run("cp", k / name, m.path / "copied").returncode, 0)
            eq((m.path / "copied").read_text()[:10], (k / name).read_text()[:10])
        eq(run("cp", "-a", k, c.dir / "copy").returncode, 0)
        eq(json.loads((c.dir / "copy" / "status").read_text())["pid"], m.proc.pid)
        eq(run("tail", "-c", "3", k / "config").stdout, (k / "config").read_text()[-3:])

    with t.claim("rm -rf of all that is in the mount does not trip over it"):
        r = run("sh", "-c", f"rm -rf {m.path}/* {m.path}/.[!.]*; ls -A {m.path}")
        eq((r.stdout, r.stderr), ("", ""))

    with t.claim("all of it is told at once while no node answers"):
        (m.path / "a").mkdir()
        (m.path / "a" / "b").write_text("x")
        want = c.http("GET", "/replicas/a/b").body
        fd = os.open(m.path / "unstored", os.O_CREAT | os.O_WRONLY)
        os.write(fd, b"1")
        for i in c.nodes():
            c.sigstop(i)
        try:
            p = subprocess.Popen(["stat", str(m.path / "waits")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            wait_until(lambda: any(x["pid"] == p.pid and x["call"] == "lookup" for x in json.loads(quick(k / "status"))["calls"]),
                       LIMIT_S, "the waiting call is named")
            for name in ("version", "status", "metrics", "config", "replicas/user:42"):
                quick(k / name)
            eq((k / "replicas" / "a" / "b").read_bytes(), want)
            for key in ("x/y", "x"):  # of neither anybody knows whether it is a directory
                eq(json.loads((k / "replicas" / key).read_text())["key"], key)
            p.wait(LIMIT_S)
            wait_until(lambda: not any(n["alive"] for n in json.loads(quick(k / "status"))["nodes"]), LIMIT_S, "the nodes count as gone")
            with contextlib.suppress(OSError):
                os.fsync(fd)
            dirty, = json.loads(quick(k / "status"))["files"]["dirty"]
            eq((dirty["key"], dirty["last_error"]), ("unstored", "Host is down"))
        finally:
            for i in c.nodes():
                c.sigcont(i)
        wait_until(lambda: all(n["alive"] for n in json.loads(quick(k / "status"))["nodes"]), LIMIT_S, "the nodes are back")
        os.close(fd)
        c.kill9()
        for name in ("version", "status", "metrics", "config", "replicas/user:42"):
            quick(k / name)

    with t.claim("the log tells once when a node goes, and once when it is back"):
        c.start()
        wait_until(lambda: all(n["alive"] for n in json.loads(quick(k / "status"))["nodes"]), LIMIT_S, "the nodes are back")
        from_here = len(m.log())
        c.kill9(2)
        wait_until(lambda: "node-down node=node-2" in m.log()[from_here:], LIMIT_S, "node-2 is told to be down")
        for n in range(50):
            (m.path / "a" / "b").write_text(str(n))
        c.start(2)
        wait_until(lambda: "node-up node=node-2" in m.log()[from_here:], LIMIT_S, "node-2 is told to be up")
        for n in range(50):
            (m.path / "a" / "b").write_text(str(n))
        events = [line.split()[3:5] for line in m.log()[from_here:].splitlines() if " node-" in line]
        eq(events, [["node-down", "node=node-2"], ["node-up", "node=node-2"]])
