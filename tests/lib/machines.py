"""machines.py - machines of a test: each a network namespace of its own, joined by veth pairs to a bridge in one more.

The namespaces have no names: they live as long as this process holds their descriptors or one of its children runs in
them. What is mounted is seen by this process and its children alone, too. So nothing is left of all that, however the
test ends. Without root or ip(8) there are none: Machines() raises
NoMachines, and Loopback() stands for machines that share everything and cannot be cut off.
"""
import ctypes
import os
import shutil
import subprocess
import threading

CLONE_NEWNS, CLONE_NEWNET = 0x00020000, 0x40000000
MS_REC, MS_PRIVATE = 0x4000, 1 << 18
NET = "10.77.0."
HUB_ADDRESS = NET + "1"
NOBODY = "02:00:00:00:00:01"  # a hardware address that no machine has

_libc = ctypes.CDLL(None, use_errno=True)


class NoMachines(Exception):
    pass


def _check(result, what):
    if result != 0:
        err = ctypes.get_errno()
        raise OSError(err, f"{what}: {os.strerror(err)}")


def _new_namespace():
    """A descriptor of a fresh network namespace; made by a thread that ends."""
    made = []

    def make():
        try:
            _check(_libc.unshare(CLONE_NEWNET), "unshare")
            made.append(os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC))
        except OSError as e:
            made.append(e)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    if isinstance(made[0], OSError):
        raise NoMachines(f"no network namespaces: {made[0]}")
    return made[0]


def _own_mounts():
    """What is mounted from now on goes with this process. While there is only one thread."""
    try:
        _check(_libc.unshare(CLONE_NEWNS), "unshare")
        _check(_libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None), "mount --make-rprivate /")
    except OSError as e:
        raise NoMachines(f"no mount namespace: {e}") from e


def enter_net(path):
    """Sockets that the calling thread makes from now on are of that machine; None: of this one."""
    if path is None:
        return
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(_libc.setns(fd, CLONE_NEWNET), "setns")
    finally:
        os.close(fd)


class Machine:
    """net: a path that stands for its network."""

    def __init__(self, name, address, fd):
        self.name, self.address, self.fd = name, address, fd
        self.net = f"/proc/{os.getpid()}/fd/{fd}"

    def prefix(self):
        """What to put before a command that is to run here. It dies with this program."""
        return ["nsenter", f"--net={self.net}", "setpriv", "--pdeathsig", "KILL"]

    def ip(self, *lines):
        """Lines of ip(8), all at once."""
        r = subprocess.run(["nsenter", f"--net={self.net}", "ip", "-batch", "-"], input="\n".join(lines) + "\n",
                           capture_output=True, text=True, check=False, timeout=20)
        if r.returncode != 0:
            raise OSError(f"ip: {r.stderr.strip()}: {lines}")


class Machines:
    """Names become machines. The calling thread then is on the hub, which reaches all of them."""

    apart = True

    def __init__(self, names):
        missing = [tool for tool in ("ip", "nsenter", "setpriv") if shutil.which(tool) is None]
        if missing:
            raise NoMachines(f"not installed: {', '.join(missing)}")
        _own_mounts()
        self.hub = Machine("hub", HUB_ADDRESS, _new_namespace())
        self.all = {name: Machine(name, f"{NET}{10 + i}", _new_namespace()) for i, name in enumerate(names)}
        try:
            self._join()
        except (OSError, subprocess.SubprocessError) as e:
            raise NoMachines(str(e)) from e
        enter_net(self.hub.net)

    def __getitem__(self, name):
        return self.all[name]

    def _join(self):
        self.hub.ip("link add br0 type bridge", f"addr add {HUB_ADDRESS}/24 dev br0", "link set br0 up",
                    "link set lo up")
        for i, m in enumerate(self.all.values()):
            self.hub.ip(f"link add p{i} type veth peer name eth0 netns {m.net}", f"link set p{i} master br0 up")
            m.port = f"p{i}"
            m.ip("link set lo up", f"addr add {m.address}/24 dev eth0", "link set eth0 up")

    def unplug(self, name):
        self.hub.ip(f"link set {self.all[name].port} down")

    def plug(self, name):
        self.hub.ip(f"link set {self.all[name].port} up")

    def lose(self, pairs):
        """What the first of each pair sends to the second gets lost, silently."""
        for a in {a for a, _ in pairs}:
            self.all[a].ip(*(f"neigh replace {self.all[b].address} lladdr {NOBODY} nud permanent dev eth0"
                             for x, b in pairs if x == a))

    def restore(self, pairs):
        for a in {a for a, _ in pairs}:
            self.all[a].ip(*(f"neigh del {self.all[b].address} dev eth0" for x, b in pairs if x == a))


class Loopback:
    """All names are this machine."""

    apart = False

    class Here:
        address, net = "127.0.0.1", None

        @staticmethod
        def prefix():
            return ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []

    def __getitem__(self, name):
        return self.Here()


def machines(names):
    """Machines, or a Loopback and why."""
    try:
        return Machines(names), None
    except NoMachines as e:
        return Loopback(), str(e)


