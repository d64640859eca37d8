"""disks.py - clusters whose nodes' disks fail, or are slow, as a test wants (disk_shim.c)."""
import pathlib

from kvtest import KVNODE, Cluster

BUILD = pathlib.Path(KVNODE).resolve().parents[1]
SHIM = BUILD / "tests/libkvdisk.so"


class ShimCluster(Cluster):
    """Its nodes' calls on their data directories can fail (fault) or are written down (trace)."""

    def __init__(self, trace=False, **kw):
        self.trace = trace
        super().__init__(start=False, **kw)

    def trace_path(self, i):
        return self.dir / f"trace-{i}"

    def fault_path(self, i):
        return self.dir / f"fault-{i}"

    def command(self, i, extra=()):
        env = [f"LD_PRELOAD={SHIM}", f"DISK_DIR={self.data_dir(i)}", f"DISK_FAULT={self.fault_path(i)}"]
        if self.trace:
            self.data_dir(i).mkdir(exist_ok=True)
            env.append(f"DISK_TRACE={self.trace_path(i)}")
        return ["env", *env, *super().command(i, extra)]

    def fault(self, i, lines):
        """Whole, or not at all: the shim reads it at every call."""
        temporary = self.dir / "fault.new"
        temporary.write_text(lines)
        temporary.rename(self.fault_path(i))

    def no_fault(self, i):
        self.fault_path(i).unlink()
