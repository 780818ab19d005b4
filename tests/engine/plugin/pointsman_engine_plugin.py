"""What a vLLM engine on a CPU loads at start for the tests; it runs in the engine's own Python.

vLLM finds it by its entry point, because ``engine.py`` puts this folder on PYTHONPATH. It changes
nothing that is tested: neither what is cached nor how it is hashed or announced.
"""

import os


def register() -> None:
    _permit_small_blocks()
    _start_by_forking()


def _permit_small_blocks() -> None:
    """The CPU backend wants multiples of 32 since 0.30; GPUs have 16, and it can do that too."""
    from vllm.v1.attention.backends import cpu_attn

    if not hasattr(cpu_attn, "MultipleOf"):
        return
    cpu_attn.CPUAttentionBackend.get_supported_kernel_block_sizes = staticmethod(
        lambda *args, **kwargs: [cpu_attn.MultipleOf(16)]
    )


def _start_by_forking() -> None:
    """Half of the start's time and memory: the engine process need not import everything again."""
    from vllm.platforms.cpu import CpuPlatform

    if getattr(CpuPlatform, "_forks", False):
        return
    check = CpuPlatform.check_and_update_config.__func__

    def check_and_fork(cls: type, config: object) -> None:
        check(cls, config)
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"

    CpuPlatform.check_and_update_config = classmethod(check_and_fork)
    CpuPlatform._forks = True
