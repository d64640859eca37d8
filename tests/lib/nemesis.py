"""nemesis.py - what happens to a world: each fault begins, lasts, and is healed; the seed decides which, whom, how long."""
import collections
import contextlib
import http.client
import os
import shutil
import threading
import time

from kvtest import START_LIMIT_S, eq, request, wait_until
from world import GATE

WHOLE_LIMIT_S = 300  # within which a node that lost data is whole again, when it is left in peace
FLIPS_MAX = 4
FLIPPED = os.environ.get("NEMESIS_FLIPPED", "values/**/*,db/*.sst,db/*.log,db/MANIFEST*").split(",")  # in a node's folder


class Fault:
    """parts: what it touches; two at the same time have none in common. clients: how to tell them of a mount's end."""

    parts = ()

    def __init__(self, world, clients, rng):
        self.world, self.clients, self.rng = world, clients, rng
        self.pick()

    def pick(self):
        raise NotImplementedError

    def start(self):
        pass

    def heal(self):
        pass

    def __str__(self):
        return f"{type(self).__name__.lower()} {', '.join(sorted(self.parts))}"


class _OfProcess(Fault):
    with_gate = True

    def pick(self):
        self.i = self.rng.choice([*([GATE] if self.with_gate else []), *self.world.nodes()])
        self.parts = {self.world.name(self.i)}


class Kill(_OfProcess):
    def start(self):
        self.world.kill9(self.i)

    def heal(self):
        self.world.start(self.i, wait=False)


class Restart(_OfProcess):
    """The exit is a good one, and the new process comes at once."""

    def start(self):
        eq(self.world.stop(self.i), [0], f"the exit code of {self.world.name(self.i)}")
        self.world.start(self.i, wait=False)


class Freeze(Fault):
    """A node, the gateway or a mount."""

    def pick(self):
        self.i = self.rng.choice([GATE, *self.world.nodes(), *self.world.mounts])
        self.is_mount = self.i in self.world.mounts
        self.parts = {self.i.path.name if self.is_mount else self.world.name(self.i)}

    def start(self):
        if self.is_mount:
            self.i.sigstop()
        else:
            self.world.sigstop(self.i)

    def heal(self):
        if self.is_mount:
            self.i.sigcont()
        else:
            self.world.sigcont(self.i)


class Mount(Fault):
    """The process of a mount dies in the middle of everything."""

    def pick(self):
        self.mount = self.rng.choice(self.world.mounts)
        self.parts = {self.mount.path.name}

    def start(self):
        self.clients.shut(self.mount.path.name)
        self.mount.proc.kill()
        self.clients.drain(self.mount.path.name)
        self.mount.kill9()

    def starts(self):
        """It does not where there is no quorum to be had, for other faults."""
        try:
            self.mount.start()
        except AssertionError as e:
            if "not enough nodes for a quorum" not in str(e):
                raise
            self.mount.proc = None
            return False
        return True

    def heal(self):
        wait_until(self.starts, WHOLE_LIMIT_S, f"{self.mount.path} starts")
        self.clients.open(self.mount.path.name)


class Unplug(Fault):
    """A machine, of a node or a client, has no network."""

    def pick(self):
        self.name = self.rng.choice(list(self.world.machines.all))
        self.parts = {"net", self.name}

    def start(self):
        self.world.machines.unplug(self.name)

    def heal(self):
        self.world.machines.plug(self.name)


class _Cut(Fault):
    """pairs: (from, to) between which everything gets lost."""

    def heal(self):
        self.world.machines.restore(self.pairs)

    def start(self):
        self.world.machines.lose(self.pairs)

    def __str__(self):
        return f"{type(self).__name__.lower()} {', '.join(f'{a}>{b}' for a, b in sorted(self.pairs))}"


class Oneway(_Cut):
    """One machine does not reach some others, which reach it."""

    def pick(self):
        names = list(self.world.machines.all)
        a, *others = self.rng.sample(names, self.rng.randint(2, len(names)))
        self.pairs = [(a, b) for b in others]
        if self.rng.random() < 0.5:
            self.pairs = [(b, a) for a, b in self.pairs]
        self.parts = {"net"}


class Partial(_Cut):
    """Two nodes do not reach one another; all others reach both. Or some machines are apart from the rest."""

    def pick(self):
        names = list(self.world.machines.all)
        if self.rng.random() < 0.5:
            left, right = ([x] for x in self.rng.sample([n for n in names if n.startswith("node")], 2))
        else:
            left = self.rng.sample(names, self.rng.randint(1, len(names) - 1))
            right = [n for n in names if n not in left]
        self.pairs = [(a, b) for a in left for b in right] + [(b, a) for a in left for b in right]
        self.parts = {"net"}


class Clock(Fault):
    """The wall clocks of some processes jump by up to two days, and stay there."""

    def pick(self):
        names = list(self.world.clocks.off)
        self.jumps = {n: self.rng.uniform(-48, 48) * 3600 for n in self.rng.sample(names, self.rng.randint(1, len(names)))}
        self.parts = {"clocks"}

    def start(self):
        for name, off in self.jumps.items():
            self.world.clocks.set(name, off)

    def __str__(self):
        return "clock " + ", ".join(f"{n} {off / 3600:+.1f} h" for n, off in sorted(self.jumps.items()))


class _Loss(Fault):
    """A node loses data. Never more than a minority of any replica set may: one node, until it is whole again."""

    def pick(self):
        self.i = self.rng.choice(list(self.world.nodes()))
        self.parts = {self.world.name(self.i)}

    def start(self):
        self.world.kill9(self.i)
        self.lose()

    def lose(self):
        raise NotImplementedError

    def heal(self):
        self.world.start(self.i, wait=False)


class Wipe(_Loss):
    """Its directory is empty."""

    def lose(self):
        self.world.wipe(self.i)


class Flip(_Loss):
    """Some bits of its files are others."""

    flipped = ""

    def lose(self):
        folder, at = self.world.data_dir(self.i), []
        for aside in folder.glob("damaged*"):  # as an operator does who has looked at it: else the node would not go on
            shutil.rmtree(aside) if aside.is_dir() else aside.unlink()
        kinds = [[f for f in sorted(folder.glob(p)) if f.is_file() and f.stat().st_size > 0] for p in FLIPPED]
        kinds = [files for files in kinds if files]
        for _ in range(self.rng.randint(1, FLIPS_MAX) if kinds else 0):
            file = self.rng.choice(self.rng.choice(kinds))
            at.append(flip(file, self.rng))
        self.flipped = ", ".join(at)

    def __str__(self):
        return f"{super().__str__()} {self.flipped}"


def flip(file, rng):
    """One bit; more often near the end, where what is new stands. Says where."""
    size = file.stat().st_size
    offset = rng.randrange(size) if rng.random() < 0.5 else max(0, size - 1 - int(rng.expovariate(1 / 300)))
    with open(file, "r+b") as f:
        f.seek(offset)
        byte = f.read(1)[0]
        f.seek(offset)
        f.write(bytes([byte ^ 1 << rng.randrange(8)]))
    return f"{file.name}[{offset} of {size}]"


FAULTS = {f.__name__.lower(): f for f in (Kill, Restart, Freeze, Mount, Unplug, Oneway, Partial, Clock, Wipe, Flip)}
LOSSES = {"wipe", "flip"}  # impossible where nodes do not repair themselves
OF_MACHINES = {"unplug", "oneway", "partial"}  # impossible where all share one


class Nemesis:
    """kinds: names of FAULTS. events: a file that tells what happened when."""

    def __init__(self, world, clients, rng, kinds, events, brief):
        self.world, self.clients, self.rng, self.kinds, self.events = world, clients, rng, list(kinds), events
        self.durations = (0.1, 0.5, 1, 1, 2, 3) if brief else (0.1, 0.1, 0.5, 1, 1, 2, 3, 8)
        self.deck, self.counts = [], collections.Counter()
        self.pause = threading.Event()  # never set
        self.lost, self.lost_at = None, None
        self.last_repair, self.recoveries = None, []
        self.spans = []  # (began, healed, faults, the node that is not whole)

    def note(self, text):
        self.events.write(f"{time.monotonic():.6f} {text}\n")
        self.events.flush()

    def next_kind(self):
        """Each comes up before any comes up again."""
        if not self.deck:
            self.deck = self.rng.sample(self.kinds, len(self.kinds))
        return self.deck[-1]

    def make(self):
        kind = self.next_kind()
        self.deck.pop()
        if kind in LOSSES:
            self.wait_whole()
        return FAULTS[kind](self.world, self.clients, self.rng)

    def once(self):
        """One fault, or two at a time; then all is well again, but for a node that has not recovered yet."""
        faults = [self.make()]
        if self.rng.random() < 0.25 and not (isinstance(faults[0], _Loss) and self.next_kind() in LOSSES):
            second = self.make()
            if not set(second.parts) & set(faults[0].parts):
                faults.append(second)
        began, healed = time.monotonic(), []
        try:
            for f in faults:
                healed.append(f)
                if isinstance(f, _Loss):
                    self.lost, self.lost_at = f.i, began
                f.start()
                self.note(f"start {f}")
                self.counts[type(f).__name__.lower()] += 1
            self.pause.wait(self.rng.choice(self.durations) * self.rng.uniform(0.5, 1))
        finally:
            # A mount begins only where nodes can be reached.
            for f in sorted(healed, key=lambda f: isinstance(f, Mount)):
                self.note(f"heal  {f}")
                f.heal()
        self.spans.append((began, time.monotonic(), faults, self.lost))
        self.wait_healed()
        self.pause.wait(self.rng.uniform(0, 0.5))

    # --- all is well again ---

    def wait_healed(self):
        for m in self.world.mounts:
            eq(m.proc.poll(), None, f"the exit code of {m.path.name}: {m.log()[-600:]}")
        for i in list(self.world.procs):
            if i == self.lost:
                wait_until(lambda: self.health(self.lost) in (200, 503), START_LIMIT_S, f"node-{i} answers")
            else:
                self.world.wait_ready(i)

    def health(self, i):
        code = self.world.procs[i].poll()
        if code is not None:
            raise AssertionError(f"node-{i}, which lost data, ended with {code}: {self.world.log(i)[-600:]}")
        with contextlib.suppress(OSError, http.client.HTTPException):
            return request(self.world.port(i), "GET", "/health", timeout=2, host=self.world.host(i)).status
        return None

    def says_whole(self):
        if self.health(self.lost) != 200:
            return False
        with contextlib.suppress(OSError, http.client.HTTPException):
            status = request(self.world.port(self.lost), "GET", "/status", timeout=2, host=self.world.host(self.lost))
            repair = self.last_repair = status.json()["repair"]
            return not repair["recovering"] and repair["damaged"] == 0 and repair["scrub"]["passes"] > 0
        return False

    def wait_whole(self):
        """The node that lost data has all of it again, and has looked at all of it."""
        if self.lost is None:
            return
        try:
            wait_until(self.says_whole, WHOLE_LIMIT_S, f"node-{self.lost}, which lost data, is whole again")
        except AssertionError as e:
            raise AssertionError(f"{e}: {self.last_repair}") from None
        took = time.monotonic() - self.lost_at
        self.recoveries.append(took)
        self.note(f"node-{self.lost} is whole again, after {took:.1f} s")
        self.lost = None
