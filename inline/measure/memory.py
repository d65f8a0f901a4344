"""Peak memory of tensors."""

import os
from collections.abc import Callable

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

# Above the levels of all that the profiler says: two lines to stderr each time, among which others are lost.
QUIET = '6'


def peak_memory(run: Callable[[], object], device: torch.device) -> int:
    """Bytes that tensors made by the run held at most at one time on the device, beyond those there before.

    On a CPU torch's allocator is asked; what libraries take for themselves, as workspaces, is not seen.
    """
    if device.type == 'cuda':
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        run()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    os.environ.setdefault('KINETO_LOG_LEVEL', QUIET)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        run()
    assert trace.profiler is not None
    events = [
        event
        for event in trace.profiler.kineto_results.events()
        if event.name() == '[memory]' and event.device_type() == DeviceType.CPU
    ]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak
