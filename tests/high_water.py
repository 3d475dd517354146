"""What memory a process has and had; for the scripts that tests run in a process of their own."""

import ctypes


def high_water() -> int:
    """The most bytes so far. Not from `getrusage`: what that tells of a child begins at what its parent had."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


class _Mallinfo2(ctypes.Structure):
    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in _names.split()]


def allocated() -> int:
    """The bytes that are allocated now, whatever the allocator itself keeps for later."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _Mallinfo2
    info = mallinfo2()
    return int(info.uordblks + info.hblkhd)
