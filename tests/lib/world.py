"""world.py - a cluster on machines of its own: nodes, a gateway, mounts; their networks, wall clocks and processes are
the nemesis's to disturb."""
import os
import pathlib
import struct
import subprocess

from kvtest import KVNODE, START_LIMIT_S, Cluster, Mount, request, wait_until

MOUNT_TIMEOUTS = (5, 0.4, 1.5)  # seconds: with the short ones more calls end without a known outcome
GATE = 0  # the gateway's number among the processes of the cluster
# Cold data is looked at, and what was deleted forgotten, while the run lasts; still longer than any message is under way.
REPAIR_OPTIONS = ("--scrub-period", "5", "--tombstone-age", "15")
REPAIRS = "--scrub-period" in subprocess.run([KVNODE, "--help"], capture_output=True, text=True, check=False).stdout
WALL_CLOCK = pathlib.Path(KVNODE).resolve().parents[1] / "tests/libwall_clock.so"


class WallClocks:
    """Of each process that was asked for, a file that says how far its wall clock is off."""

    def __init__(self, folder):
        self.folder = folder
        self.off = {}  # name: seconds

    def prefix(self, name):
        """What to put before a command so that it has this clock."""
        if name not in self.off:
            self.set(name, 0)
        return ["env", f"LD_PRELOAD={WALL_CLOCK}", f"KVTEST_WALL_CLOCK={self.folder / name}.clock"]

    def set(self, name, seconds):
        """At once, also for the running process."""
        fd = os.open(f"{self.folder / name}.clock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.pwrite(fd, struct.pack("<q", int(seconds * 1e9)), 0)
        finally:
            os.close(fd)
        self.off[name] = seconds


class World(Cluster):
    """Nodes 1..n, the gateway GATE, and mounts, each on a machine of its own or of a client."""

    def __init__(self, machines, n, n_clients, base_port):
        self.machines, self.clocks = machines, None
        hosts = {i: machines[self.machine_of(i)].address for i in [GATE, *range(1, n + 1)]}
        super().__init__(n=n, base_port=base_port, start=False, hosts=hosts, args=REPAIR_OPTIONS if REPAIRS else ())
        self.keep_always, self.keep = self.keep, True  # until all went well
        self.clocks = WallClocks(self.dir)
        try:
            self.start(*self.nodes())
            self.start(GATE)
            for k in range(1, n_clients + 1):
                patience = MOUNT_TIMEOUTS[k % len(MOUNT_TIMEOUTS)]
                self.mounts.append(Mount(self.config_path, self.dir / f"mnt-{k}", [f"timeout={patience}"],
                                         prefix=machines[f"client-{k}"].prefix() + self.clocks.prefix(f"mnt-{k}")))
        except BaseException:
            self.close()
            raise

    def __exit__(self, kind, *_):
        if kind is SystemExit:  # told to stop
            self.keep = self.keep_always
        self.close()

    @staticmethod
    def machine_of(i):
        return "client-1" if i == GATE else f"node-{i}"

    @staticmethod
    def machine_names(n, n_clients):
        return [f"node-{i}" for i in range(1, n + 1)] + [f"client-{k}" for k in range(1, n_clients + 1)]

    def net_of_mount(self, mount):
        return self.machines[f"client-{self.mounts.index(mount) + 1}"].net

    def name(self, i):
        return "gate" if i == GATE else f"node-{i}"

    def command(self, i, extra=()):
        prefix = self.machines[self.machine_of(i)].prefix() + self.clocks.prefix(self.name(i))
        if i != GATE:
            return prefix + super().command(i, extra)
        return [*prefix, KVNODE, "--config", str(self.config_path), "--gateway", f"{self.host(GATE)}:{self.port(GATE)}"]

    def wait_alive(self):
        nodes = {f"node-{k}" for k in self.procs if k != GATE and k not in self.frozen}

        def alive(i):
            status = request(self.port(i), "GET", "/status", timeout=5, host=self.host(i)).json()
            return nodes <= {n["id"] for n in status["nodes"] if n["alive"]}

        for i in set(self.procs) - self.frozen:
            wait_until(lambda i=i: alive(i), START_LIMIT_S, f"{self.name(i)} sees the others")
