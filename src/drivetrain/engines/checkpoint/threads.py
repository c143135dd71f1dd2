"""How many threads torch computes with."""

from __future__ import annotations

import os

from drivetrain.telemetry.cores import fewer_than


def keep_to_usable_cores() -> None:
    """For this whole process. Torch counts the machine's cores, whatever quota there is; what the caller says holds."""
    import torch

    if "OMP_NUM_THREADS" not in os.environ and (threads := fewer_than(torch.get_num_threads())) is not None:
        torch.set_num_threads(threads)
