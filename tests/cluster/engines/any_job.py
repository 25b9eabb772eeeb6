"""Any job that the spec takes, as widely as its fields allow, in one namespace: for an API server to judge."""

from __future__ import annotations

from hypothesis import strategies as st

_name = st.from_regex(r"[a-z]([-a-z0-9]{0,8}[a-z0-9])?", fullmatch=True)
_object = st.one_of(_name, st.from_regex(r"[a-z0-9]{1,5}(\.[a-z0-9]([-a-z0-9]{0,5}[a-z0-9])?){1,3}", fullmatch=True))
_label = st.one_of(
    st.from_regex(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", fullmatch=True),
    st.from_regex(r"[a-z0-9]{1,5}(\.[a-z0-9]([-a-z0-9]{0,5}[a-z0-9])?){1,3}/[A-Za-z0-9]", fullmatch=True),
)
_label_value = st.from_regex(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?", fullmatch=True)
_text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
_word = _text.filter(lambda text: text.split() == [text])
_path = st.one_of(
    st.lists(_text, max_size=3).map(lambda parts: "/" + "/".join(parts)),
    st.sampled_from(["/dev/shm", "/run/allranks", "/allranks/", "/data/../etc", "/a:b", "/tmp", "/"]),
)
_amount = st.one_of(
    st.integers(1, 2**40).map(str),
    st.builds("{}{}".format, st.integers(1, 900), st.sampled_from(["m", "k", "e3", ".5", "P", "n"])),
)
_memory = st.builds("{}{}".format, st.integers(2, 999), st.sampled_from(["Mi", "Gi", "M", ".5G", "e6", "000000", "Ti"]))
_count = st.one_of(st.integers(1, 2**31), st.sampled_from(["1k", "2e3"]))
_time = st.one_of(
    st.integers(1, 10**6).map("{}s".format), st.sampled_from(["1ms", "90s", "10m", "24h", "3650d", "1h30m"])
)
_volume = st.one_of(
    st.fixed_dictionaries({"claim": _object, "path": _path}, optional={"read_only": st.booleans()}),
    st.fixed_dictionaries({"host": _path, "path": _path}, optional={"read_only": st.booleans()}),
)
_effect = st.sampled_from(["NoSchedule", "PreferNoSchedule", "NoExecute"])
_toleration = st.one_of(
    st.fixed_dictionaries(
        {}, optional={"key": _label, "operator": st.sampled_from(["Equal", "Exists"]), "value": _label_value}
    ),
    st.fixed_dictionaries({"operator": st.just("Exists")}, optional={"key": _label, "effect": _effect}),
    st.fixed_dictionaries({"key": _label, "value": _label_value}, optional={"effect": _effect}),
    st.fixed_dictionaries(
        {"key": _label, "operator": st.just("Exists"), "effect": st.just("NoExecute")},
        optional={"toleration_seconds": st.integers(0, 2**63)},
    ),
)
_resources = st.fixed_dictionaries(
    {},
    optional={
        "cpu": _amount,
        "gpus": st.integers(0, 1024), "gpu_resource": st.sampled_from(["nvidia.com/gpu", "amd.com/gpu", "a.b/mig-1"]),
        "memory": _memory, "shm": _memory,
        "extra": st.one_of(
            st.dictionaries(st.sampled_from(["rdma/rdma", "mellanox.com/x_y", "nvidia.com/gpu", "cpu"]), _count),
            st.dictionaries(st.sampled_from(["hugepages-2Mi", "hugepages-1Gi", "ephemeral-storage"]), _memory),
        ),
    },
)  # fmt: skip
_schedule = st.fixed_dictionaries(
    {},
    optional={
        "queue": _name,
        "gang": st.sampled_from(["auto", "off"]),
        "priority": _object,
        "tolerations": st.lists(_toleration, max_size=3),
        "node_selector": st.dictionaries(_label, _label_value, max_size=3),
        "topology": st.one_of(
            st.fixed_dictionaries({"required": _label}), st.fixed_dictionaries({"preferred": _label})
        ),
    },
)
_failure = st.fixed_dictionaries(
    {},
    optional={
        "restarts": st.integers(0, 1_000_000), "start_timeout": _time, "hang_timeout": _time, "grace": _time,
        "deadline": _time, "force_delete": st.booleans(), "clean": st.sampled_from(["running", "all", "none"]),
        "ttl": _time,
    },
)  # fmt: skip
_pod = st.fixed_dictionaries(
    {},
    optional={
        "serviceAccountName": _object,
        "hostNetwork": st.booleans(),
        "imagePullSecrets": st.lists(
            st.fixed_dictionaries({"name": _object}), max_size=2, unique_by=lambda it: it["name"]
        ),
        "securityContext": st.fixed_dictionaries(
            {}, optional={"runAsUser": st.integers(0, 2**31 - 1), "runAsNonRoot": st.booleans(), "fsGroup": st.just(7)}
        ),
        "volumes": st.just([{"name": "scratch", "emptyDir": {}}]),
        "schedulerName": _name,
    },
)
_container = st.fixed_dictionaries(
    {},
    optional={
        "imagePullPolicy": st.sampled_from(["Always", "IfNotPresent", "Never"]),
        "securityContext": st.fixed_dictionaries({}, optional={"readOnlyRootFilesystem": st.booleans()}),
        "env": st.just([{"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]),
    },
)
_mpijob = st.fixed_dictionaries(
    {}, optional={"start": st.sampled_from(["agents", "mpirun"]), "implementation": st.sampled_from(["intel", "mpich"])}
)
_engines = st.fixed_dictionaries(
    {},
    optional={
        "mpijob": _mpijob, "runai": st.fixed_dictionaries({}, optional={"project": _name, "interactive": st.booleans()})
    },
)  # fmt: skip
_run = st.one_of(
    st.lists(_text, min_size=1, max_size=5).filter(lambda argv: bool(argv[0])), st.just("python train.py --lr '1 2'")
)
ANY = st.fixed_dictionaries(
    {
        "name": st.one_of(_name, st.from_regex(r"[a-z][-a-z0-9]{38}[a-z0-9]", fullmatch=True)),
        "nodes": st.one_of(st.integers(1, 4), st.integers(1, 10_000)), "run": _run, "image": _word,
    },
    optional={
        "ranks_per_node": st.integers(1, 4096),
        "launcher": st.sampled_from(["native", "torchrun", "deepspeed", "mpirun"]),
        "workdir": st.one_of(_path, _word), "preflight": st.booleans(),
        "env": st.dictionaries(st.from_regex(r"[A-Z_][A-Z0-9_]{0,8}X", fullmatch=True), _text, max_size=3),
        "env_from": st.lists(_object.map("secret/{}".format) | _object.map("configmap/{}".format), max_size=3),
        "resources": _resources,
        "network": st.fixed_dictionaries(
            {}, optional={"rdma": st.sampled_from(["auto", "required", "off"]),
                          "annotations": st.dictionaries(_label, _text, max_size=3)},
        ),
        "volumes": st.lists(_volume, max_size=3, unique_by=lambda volume: volume["path"]),
        "schedule": _schedule, "failure": _failure, "logs": st.fixed_dictionaries({"limit": _memory}),
        "pod": _pod, "container": _container, "engines": _engines,
    },
)  # fmt: skip
