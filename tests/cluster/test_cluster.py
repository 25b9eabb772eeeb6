"""What can be done with the cluster that is up; of each fault that it strikes and that its undoing undoes it.

The pods hold nothing but the pause image: whether packets reach one is told by its refusing a connection.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest

from tests.cluster import boot, faults, pods
from tests.cluster.api import Api, ApiError
from tests.cluster.cluster import Cluster
from tests.cluster.errors import CannotInject, ClusterError
from tests.cluster.layout import RUN, node_ip
from tests.cluster.node_config import PAUSE
from tests.cluster.processes import run, wait
from tests.cluster.world import WORLD

NODE = "n3"


@pytest.fixture
def pod(cluster: Cluster) -> Iterator[str]:
    """A running pod on the node that is broken."""
    name = f"fault-{uuid4().hex[:6]}"
    container = {"name": "c", "image": PAUSE, "volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    volumes = [{"name": "data", "emptyDir": {}}]
    spec = {"nodeName": NODE, "containers": [container], "volumes": volumes, "terminationGracePeriodSeconds": 1}
    cluster.api(_path(), {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
    cluster.kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=60s")
    yield name
    with suppress(ApiError):
        faults.delete(cluster, _path(name))


def test_a_process_is_killed_in_its_pod_even_if_it_is_the_first(cluster: Cluster, pod: str) -> None:
    faults.kill(cluster, pod)
    wait("the container to be started again", lambda: _restarts(cluster, pod) == 1, 60)


def test_a_pod_without_network_neither_answers_nor_refuses_until_it_is_healed(cluster: Cluster, pod: str) -> None:
    address = _address(cluster, pod)
    assert _knock(address) == "refused"
    faults.cut_pod(cluster, pod)
    assert _knock(address) == "silent"
    faults.heal_pod(cluster, pod)
    wait("the pod to answer", lambda: _knock(address) == "refused", 30)


def test_a_node_without_network_is_silent_until_it_is_healed(cluster: Cluster, pod: str) -> None:
    address = _address(cluster, pod)
    faults.cut(cluster, NODE)
    assert (_knock(node_ip(NODE), 10250), _knock(address)) == ("silent", "silent")
    faults.heal(cluster, NODE)
    wait("the node to answer", lambda: _knock(node_ip(NODE), 10250) == "open", 30)
    wait("the node to be Ready", lambda: NODE in boot.ready_nodes(Api()), 60)


def test_a_network_is_slowed_to_a_rate_and_delayed_where_the_kernel_can(cluster: Cluster, pod: str) -> None:
    faults.slow_pod(cluster, pod, mbit=1)
    found = pods.find(cluster, pod)
    assert "tbf" in found.node.init.run("tc", "qdisc", "show", "dev", found.link())
    with suppress(CannotInject):
        faults.slow_pod(cluster, pod, delay=300)
        assert "netem" in found.node.init.run("tc", "qdisc", "show", "dev", found.link())
    faults.heal_pod(cluster, pod)
    shown = found.node.init.run("tc", "qdisc", "show", "dev", found.link())
    assert not {"tbf", "netem"} & set(shown.split())


def test_a_full_disk_of_a_pod_takes_no_more_until_it_is_emptied(cluster: Cluster, pod: str) -> None:
    faults.fill_pod(cluster, pod, "/data", megabytes=1)
    file = Path(f"/proc/{pods.find(cluster, pod).first}/root/data/more")
    with pytest.raises(OSError, match="No space left"):
        file.write_bytes(b"x" * 8192)
    faults.empty_pod(cluster, pod, "/data")
    file.write_bytes(b"x" * 8192)


def test_a_node_that_loses_power_is_found_not_ready_and_comes_back_with_its_resources(cluster: Cluster) -> None:
    cluster.advertise(NODE, {"nvidia.com/gpu": 2})
    faults.power_off(cluster, NODE)
    try:
        assert _knock(node_ip(NODE), 10250) == "silent"
        wait("the node to be not Ready", lambda: NODE not in boot.ready_nodes(Api()), 90)
    finally:
        faults.power_on(cluster, NODE)
    wait("the node to be Ready", lambda: NODE in boot.ready_nodes(Api()), 90)
    assert cluster.api(f"/api/v1/nodes/{NODE}")["status"]["allocatable"]["nvidia.com/gpu"] == "2"
    cluster.advertise(NODE, {"nvidia.com/gpu": 0})


def test_a_cordoned_node_gets_no_pod_and_a_drained_one_loses_them(cluster: Cluster, pod: str) -> None:
    faults.drain(cluster, NODE, grace=1)
    try:
        assert cluster.api(f"/api/v1/nodes/{NODE}")["spec"]["unschedulable"]
        with pytest.raises(ApiError):
            cluster.api(_path(pod))
    finally:
        faults.uncordon(cluster, NODE)
    assert "unschedulable" not in cluster.api(f"/api/v1/nodes/{NODE}")["spec"]


def test_a_stopped_kubelet_leaves_its_pods_running(cluster: Cluster, pod: str) -> None:
    with faults.kubelet_stopped(cluster, NODE):
        wait("the end of the kubelet", lambda: _knock(node_ip(NODE), 10250) == "refused", 10)
        assert pods.find(cluster, pod).processes
    wait("the kubelet", lambda: _knock(node_ip(NODE), 10250) == "open", 60)


def test_the_api_server_and_an_operator_are_away_and_come_back(cluster: Cluster) -> None:
    with faults.stopped(cluster, "kube-apiserver"), pytest.raises(OSError, match=r"refused|reset"):
        cluster.api("/readyz")
    assert cluster.api("/readyz") == "ok"
    before = _starts("jobset")
    faults.restart(cluster, "jobset")
    assert _starts("jobset") == before + 1


def test_an_object_is_deleted_whatever_its_finalizers_say(cluster: Cluster) -> None:
    name = f"stuck-{uuid4().hex[:6]}"
    metadata = {"name": name, "finalizers": ["allranks.dev/never"]}
    cluster.api("/api/v1/namespaces/default/configmaps", {"metadata": metadata})
    faults.delete(cluster, f"/api/v1/namespaces/default/configmaps/{name}")
    with pytest.raises(ApiError) as gone:
        cluster.api(f"/api/v1/namespaces/default/configmaps/{name}")
    assert gone.value.code == 404


def test_a_user_may_do_what_a_role_says_and_nothing_else(cluster: Cluster) -> None:
    name = f"user-{uuid4().hex[:6]}"
    kubeconfig = cluster.user(name)
    kubectl = [cluster.binary, "--kubeconfig", kubeconfig, "get"]
    with pytest.raises(ClusterError, match="cannot list resource"):
        run(*kubectl, "pods")
    cluster.kubectl("create", "role", name, "--verb=list", "--resource=pods")
    cluster.kubectl("create", "rolebinding", name, f"--role={name}", f"--user={name}")
    wait("the role to hold", lambda: run(*kubectl, "pods", "-o", "name") is not None, 20)
    with pytest.raises(ClusterError, match="cannot list resource"):
        run(*kubectl, "secrets")
    cluster.kubectl("delete", "role,rolebinding", name)


def test_a_folder_that_is_mounted_is_seen_by_new_containers_read_only(cluster: Cluster, pod: str) -> None:
    folder = RUN / f"mounted-{uuid4().hex[:6]}"
    folder.mkdir()
    (folder / "file").write_text("here")
    cluster.mount({"/extra": folder})
    faults.kill(cluster, pod)
    wait("the container to be started again", lambda: _restarts(cluster, pod) == 1, 60)
    inside = Path(f"/proc/{pods.find(cluster, pod).first}")
    assert (inside / "root/extra/file").read_text() == "here"
    assert any(" /extra ro," in line for line in (inside / "mountinfo").read_text().splitlines())


def _path(name: str = "") -> str:
    return f"/api/v1/namespaces/default/pods/{name}".rstrip("/")


def _address(cluster: Cluster, pod: str) -> str:
    address: str = cluster.api(_path(pod))["status"]["podIP"]
    return address


def _restarts(cluster: Cluster, pod: str) -> int:
    count: int = cluster.api(_path(pod))["status"]["containerStatuses"][0]["restartCount"]
    return count


def _starts(name: str) -> int:
    starts: int = WORLD.children()[name]["starts"]
    return starts


def _knock(address: str, port: int = 9) -> str:
    try:
        socket.create_connection((address, port), timeout=2).close()
    except ConnectionRefusedError:
        return "refused"
    except OSError:
        return "silent"
    return "open"
