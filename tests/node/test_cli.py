"""test_cli.py - starting, refusing to start, and stopping: options, exit codes, reasons."""
import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from kvtest import KVNODE, Claims, Cluster, connect, eq, request, wait_until  # noqa: E402

BASE = 18240


def run(*args, cwd=None, timeout=20):
    p = subprocess.run([KVNODE, *args], capture_output=True, text=True, cwd=cwd, timeout=timeout, check=False)
    return p.returncode, p.stdout, p.stderr


def usage(t):
    with t.claim("--help and --version go to stdout and end with 0, with one dash as well"):
        for arg in ("--help", "-help"):
            code, out, err = run(arg)
            eq((code, err), (0, ""))
            assert out.startswith("usage: kvnode"), out
        for arg in ("--version", "-version"):
            code, out, err = run(arg)
            eq((code, err), (0, ""))
            assert out.startswith("kvnode "), out

    with t.claim("usage errors go to stderr, name what is wrong, and end with 2"):
        for args, word in [
            ("", "--id"),
            ("--id", "id"),
            ("--nonsense", "nonsense"),
            ("--id a stray", "stray"),
            ("--id a --gateway h:1", "exclude"),
            ("--id a --store tape", "tape"),
            ("--id a --fsync maybe", "maybe"),
            ("--id a --store redis://:secret@h:1/0", "--redis-password-file"),
            ("--gateway h:1 --data d", "gateway"),
            ("--gateway h:1 --store rocksdb", "--store"),
            ("--gateway h:1 --fsync always", "--fsync"),
            ("--id=", "--id"),
            ("-id= --config x", "--id"),
            ("--id a --data=", "--data"),
            ("--id a --tombstone-age 0", "--tombstone-age 0"),
            ("--id a --tombstone-age -1", "seconds"),
            ("--id a --scrub-period 1h", "--scrub-period 1h"),
            ("--id a --scrub-period 99999999999999999999", "seconds"),
            ("--gateway h:1 --accept-data-loss", "--accept-data-loss"),
        ]:
            code, out, err = run(*args.split())
            eq((code, out), (2, ""), args)
            assert word in err, (args, err)


def bad_configs(t, folder):
    def config(**changes):
        nodes = [node(f"n{i}", f"localhost:{BASE + i}") for i in (1, 2, 3)]
        return {"nodes": nodes, "replication_factor": 3, **changes}

    def node(name, addr):
        return {"id": name, "addr": addr}

    def refused(name, text, *words):
        path = folder / name
        path.write_text(text if isinstance(text, str) else json.dumps(text))
        code, out, err = run("--config", str(path), "--id", "n1", "--store", "memory")
        eq((code, out), (1, ""), err)
        for word in (name, *words):
            assert word in err, (word, err)

    with t.claim("a bad configuration is refused, naming file, field and value"):
        refused("trailing.json", json.dumps(config()) + " x")
        refused("none.json", config(nodes=[]), "nodes")
        refused("twice.json", config(nodes=[node("n1", "h:1"), node("n1", "h:2")]), "n1")
        refused("sameaddr.json", config(nodes=[node("n1", "h:1"), node("n2", "h:1")]), "h:1")
        refused("port.json", config(nodes=[node("n1", "h:70000")]), "70000")
        refused("noport.json", config(nodes=[node("n1", "no-port")]), "no-port")
        refused("rf.json", config(replication_factor=0), "replication_factor")
        refused("type.json", config(replication_factor="3"), "replication_factor")
        refused("unknown.json", config(colour="red"), "colour", "red")
        refused("hash.json", config(hash="md5"), "md5")

    with t.claim("options may be written with one dash or two, with = or without; the default is ./cluster.json"):
        (folder / "here").mkdir()
        (folder / "here" / "cluster.json").write_text(json.dumps(config()))
        for args in (("--id", "n8"), ("-id", "n8"), ("--id=n8",), ("-id=n8",)):
            for where in ((), ("-config", "cluster.json"), ("--config=cluster.json",), ("-config=cluster.json",)):
                code, _, err = run(*args, *where, cwd=folder / "here")
                eq(code, 1)
                assert 'cluster.json: there is no node "n8"' in err, err

    with t.claim("a missing configuration and an id that it does not hold are refused by name"):
        code, _, err = run("--config", str(folder / "absent.json"), "--id", "n1")
        eq(code, 1)
        assert "absent.json" in err, err
        good = folder / "good.json"
        good.write_text(json.dumps(config()))
        code, _, err = run("--config", str(good), "--id", "n9")
        eq(code, 1)
        assert "n9" in err and "good.json" in err, err
        code, _, err = run("--id", "n1", cwd=folder / "empty")
        eq(code, 1)
        assert "cluster.json" in err, err

    with t.claim("a gateway refuses replication_factor above the number of nodes"):
        path = folder / "gateway.json"
        path.write_text(json.dumps(config(replication_factor=4)))
        code, _, err = run("--config", str(path), "--gateway", f"localhost:{BASE + 9}")
        eq(code, 1)
        assert "replication_factor" in err, err


def second_process(t, c):
    other = c.dir / "other.json"
    nodes = [{"id": f"node-{i}", "addr": f"localhost:{BASE + 5 + i}"} for i in (1, 2)]
    other.write_text(json.dumps({"nodes": nodes, "replication_factor": 2}))

    with t.claim("a taken port is refused with the address"):
        code, _, err = run("--config", str(c.config_path), "--id", "node-1", "--data", str(c.dir / "elsewhere"))
        eq(code, 1)
        assert f"localhost:{c.port(1)}" in err and "in use" in err, err
        assert not (c.dir / "elsewhere").exists(), "nothing was made"

    with t.claim("a second process on a data directory is refused while the first one lives on"):
        code, _, err = run("--config", str(other), "--id", "node-1", "--data", str(c.data_dir(1)))
        eq(code, 1)
        assert str(c.data_dir(1)) in err, err
        eq(c.http("PUT", "/kv/alive", b"x").status // 100, 2)

    with t.claim("a data directory of another node's id is refused, naming both"):
        c.stop(1)
        code, _, err = run("--config", str(other), "--id", "node-2", "--data", str(c.data_dir(1)))
        eq(code, 1)
        assert "node-1" in err and "node-2" in err, err
        c.start(1)

    with t.claim("an address that is not this machine's is refused"):
        far = c.dir / "far.json"
        far.write_text(json.dumps({"nodes": [{"id": "far", "addr": "192.0.2.1:8081"}], "replication_factor": 1}))
        code, _, err = run("--config", str(far), "--id", "far", "--store", "memory")
        eq(code, 1)
        assert "192.0.2.1:8081" in err, err


def stopping(t, c):
    with t.claim("SIGTERM in the middle of writes: each is answered or cut, those answered are there, exit 0"):
        acked, threads = [], []

        def write(w):
            with contextlib.suppress(OSError, Exception):
                conn = connect(c.port(1))
                for i in range(100000):
                    if request(0, "PUT", f"/kv/stop-{w}-{i}", b"v", conn=conn).status == 201:
                        acked.append(f"stop-{w}-{i}")

        for w in range(4):
            threads.append(threading.Thread(target=write, args=(w,)))
            threads[-1].start()
        wait_until(lambda: len(acked) > 100, 20, "a hundred writes")
        eq(c.stop(1), [0])
        for th in threads:
            th.join(20)
        for key in acked:
            eq(c.http("GET", f"/kv/{key}", node=2).status, 200, key)
        c.start(1)

    with t.claim("a stalled upload does not keep a node from ending"):
        conn = connect(c.port(1))
        conn.putrequest("PUT", "/kv/stalled", skip_accept_encoding=True)
        conn.putheader("Content-Length", "1000")
        conn.endheaders()
        conn.send(b"part")
        eq(c.stop(1), [0])
        conn.close()
        c.start(1)
        eq(c.http("GET", "/kv/stalled").status, 404)

    with t.claim("requests that wait for a quorum in vain are answered, and do not keep a node from ending"):
        c.sigstop(2)
        c.sigstop(3)
        try:
            answers = []

            def wait():
                answers.append(c.http("PUT", "/kv/waits", b"x").status)

            threads = [threading.Thread(target=wait) for _ in range(5)]
            for th in threads:
                th.start()
            five = b'kvfs_http_in_flight{route="kv"} 5\n'
            wait_until(lambda: five in c.http("GET", "/metrics").body, 5, "five requests wait")
            start = time.monotonic()
            eq(c.stop(1), [0])
            assert time.monotonic() - start < 10
            for th in threads:
                th.join(10)
            eq(answers, [503] * 5)
        finally:
            c.sigcont(2)
            c.sigcont(3)
        c.start(1)

    with t.claim("SIGINT ends it with 0 as well"):
        c.procs[1].send_signal(signal.SIGINT)
        eq(c.procs.pop(1).wait(15), 0)
        c.start(1)


def readiness(t, c):
    with t.claim("the service manager is told READY and STOPPING, and one line of the log says that it listens"):
        path = str(c.dir / "notify")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
            s.bind(path)
            s.settimeout(15)
            c.stop(2)
            os.environ["NOTIFY_SOCKET"] = path
            try:
                c.start(2)
            finally:
                del os.environ["NOTIFY_SOCKET"]
            eq(s.recv(100), b"READY=1")
            c.stop(2)
            eq(s.recv(100), b"STOPPING=1")
        last = c.log(2).rsplit("--- start\n", 1)[1]
        eq(last.count(" info listening "), 1)
        c.start(2)

    with t.claim("localhost is all of it: 127.0.0.1 and, where the machine has it, ::1"):
        eq(request(c.port(1), "GET", "/health", host="127.0.0.1").status, 200)
        names = {a[4][0] for a in socket.getaddrinfo("localhost", c.port(1), type=socket.SOCK_STREAM)}
        ours = pathlib.Path("/proc/net/if_inet6")
        if "::1" in names and ours.exists() and ours.read_text():
            eq(request(c.port(1), "GET", "/health", host="::1").status, 200)

    with t.claim("a ring that is badly balanced is told of once at start, with the remedy"):
        path = c.dir / "skewed.json"
        nodes = [{"id": f"node-{i}", "addr": f"localhost:{BASE + 5 if i == 1 else 1000 + i}"} for i in range(1, 6)]
        path.write_text(json.dumps({"nodes": nodes, "replication_factor": 2, "virtual_nodes": 1}))
        args = ["--config", str(path), "--id", "node-1", "--store", "memory"]
        p = subprocess.Popen([KVNODE, *args], stderr=subprocess.PIPE, text=True)
        try:
            seen = []
            for line in p.stderr:
                seen.append(line)
                if " listening " in line:
                    break
        finally:
            p.kill()
            p.wait()
            p.stderr.close()
        text = "".join(seen)
        eq(text.count("ring-unbalanced"), 1)
        assert "fnv1a-mix" in text, text


def memory_store(t):
    with t.claim("--store memory serves without a data directory, and forgets"):
        with Cluster(n=3, base_port=BASE + 5, store="memory") as c:
            eq(c.http("PUT", "/kv/x", b"1").status, 201)
            eq(c.http("GET", "/kv/x", node=2).body, b"1")
            assert not c.data_dir(1).exists()
            eq(c.stop(), [0, 0, 0])


with Claims() as t:
    usage(t)
    with Cluster(base_port=BASE) as c:
        (c.dir / "empty").mkdir()
        bad_configs(t, c.dir)
        second_process(t, c)
        stopping(t, c)
        readiness(t, c)
    memory_store(t)
