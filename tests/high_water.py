"""The most memory that a process had; for the scripts that tests run in a process of their own."""


def high_water() -> int:
    """The most bytes so far. Not from `getrusage`: what that tells of a child begins at what its parent had."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
