"""The options of mpirun, torchrun and deepspeed: how many words each takes, and what each is to a gang.

A meaning is a name that ``launch.py`` knows (``ranks``, ``per_node``, ...), ``ours`` for what allranks sees to itself,
or ``lost`` for what has no counterpart. Names are compared without leading dashes, with ``_`` for ``-``.
"""

from __future__ import annotations

Option = tuple[int, str]


def _table(**meanings: dict[int, str]) -> dict[str, Option]:
    return {
        name: (count, meaning) for meaning, by_count in meanings.items() for count, names in by_count.items()
        for name in names.split()
    }  # fmt: skip


MPIRUN = _table(
    ranks={1: "np n c"},
    per_node={1: "npernode N ppn perhost rr"},
    one_per_node={0: "pernode"},
    map_by={1: "map_by"},
    hostfile={1: "hostfile machinefile default_hostfile f"},
    workdir={1: "wdir wd chdir"},
    variable={1: "x"},
    pair={2: "genv env"},
    names={1: "genvlist"},
    deadline={1: "timeout"},
    ours={
        0: "allow_run_as_root oversubscribe nooversubscribe tag_output timestamp_output display_map display_allocation "
        "genvall envall merge_stderr_to_stdout l prepend_rank quiet q v verbose disable_auto_cleanup nolocal",
        1: "H host hosts launcher bootstrap launch_agent output stdin plm iface launcher_exec personality",
    },
    lost={
        0: "bynode byslot bind_to_core bind_to_none bind_to_socket report_bindings use_hwthread_cpus print_rank_map "
        "enable_recovery continuous xterm do_not_launch",
        1: "bind_to rank_by output_filename prefix tune am report_uri cpus_per_proc cpus_per_rank cpu_set display "
        "with_ft max_restarts binding outfile_pattern errfile_pattern",
        2: "mca gmca prtemca pmixmca omca",
    },
)
TORCHRUN = _table(
    nodes={1: "nnodes"},
    per_node={1: "nproc_per_node"},
    restarts={1: "max_restarts"},
    module={0: "m module"},
    bare={0: "no_python"},
    ours={
        0: "standalone use_env",
        1: "node_rank master_addr master_port rdzv_backend rdzv_endpoint rdzv_id rdzv_conf local_addr role "
        "monitor_interval",
    },
    lost={
        0: "run_path enable_numa_binding",
        1: "log_dir r redirects t tee start_method logs_specs local_ranks_filter event_log_handler "
        "numa_binding signals_to_handle",
    },
)
DEEPSPEED = _table(
    nodes={1: "num_nodes"},
    per_node={1: "num_gpus num_accelerators"},
    hostfile={1: "H hostfile"},
    module={0: "module"},
    bare={0: "no_python"},
    ours={
        0: "no_ssh no_ssh_check force_multi no_local_rank save_pid",
        1: "master_addr master_port node_rank ssh_port launcher pdsh",
    },
    lost={
        0: "bind_cores_to_rank elastic_training",
        1: "i include e exclude launcher_args enable_each_rank_log autotuning bind_core_list venv_script "
        "min_elastic_nodes max_elastic_nodes user",
    },
)

PROGRAMS = {
    "mpirun": MPIRUN, "mpiexec": MPIRUN, "orterun": MPIRUN, "prterun": MPIRUN, "mpiexec.hydra": MPIRUN,
    "mpirun.openmpi": MPIRUN, "mpiexec.openmpi": MPIRUN, "mpirun.mpich": MPIRUN, "torchrun": TORCHRUN,
    "deepspeed": DEEPSPEED, "deepspeed.py": DEEPSPEED,
}  # fmt: skip
MODULES = {
    "torch.distributed.run": "torchrun", "torch.distributed.launch": "torchrun",
    "deepspeed": "deepspeed", "deepspeed.launcher.runner": "deepspeed",
}  # fmt: skip
STARTERS = ("accelerate", "horovodrun", "colossalai", "composer", "ray", "srun", "lightning")
