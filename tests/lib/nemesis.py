"""nemesis.py - what happens to a world: each fault begins, lasts, and is healed; the seed decides which, whom, how long."""
import collections
import threading
import time

from kvtest import eq
from world import GATE


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

    def heal(self):
        self.mount.start()
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


FAULTS = {f.__name__.lower(): f for f in (Kill, Restart, Freeze, Mount, Unplug, Oneway, Partial, Clock)}
OF_MACHINES = {"unplug", "oneway", "partial"}  # impossible where all share one


class Nemesis:
    """kinds: names of FAULTS. events: a file that tells what happened when."""

    def __init__(self, world, clients, rng, kinds, events, brief):
        self.world, self.clients, self.rng, self.kinds, self.events = world, clients, rng, list(kinds), events
        self.durations = (0.1, 0.5, 1, 1, 2, 3) if brief else (0.1, 0.1, 0.5, 1, 1, 2, 3, 8)
        self.deck, self.counts = [], collections.Counter()
        self.pause = threading.Event()  # never set
        self.spans = []  # (began, healed, faults)

    def note(self, text):
        self.events.write(f"{time.monotonic():.6f} {text}\n")
        self.events.flush()

    def make(self):
        """Each kind comes up before any comes up again."""
        if not self.deck:
            self.deck = self.rng.sample(self.kinds, len(self.kinds))
        return FAULTS[self.deck.pop()](self.world, self.clients, self.rng)

    def once(self):
        """One fault, or two at a time; then all is well again."""
        faults = [self.make()]
        if self.rng.random() < 0.25:
            second = self.make()
            if not set(second.parts) & set(faults[0].parts):
                faults.append(second)
        began, healed = time.monotonic(), []
        try:
            for f in faults:
                self.note(f"start {f}")
                f.start()
                self.counts[type(f).__name__.lower()] += 1
                healed.append(f)
            self.pause.wait(self.rng.choice(self.durations) * self.rng.uniform(0.5, 1))
        finally:
            # A mount begins only where nodes can be reached.
            for f in sorted(healed, key=lambda f: isinstance(f, Mount)):
                self.note(f"heal  {f}")
                f.heal()
        self.spans.append((began, time.monotonic(), faults))
        self.wait_healed()
        self.pause.wait(self.rng.uniform(0, 0.5))

    def wait_healed(self):
        for i in list(self.world.procs):
            self.world.wait_ready(i)


