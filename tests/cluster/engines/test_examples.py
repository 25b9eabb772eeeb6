"""The examples on the real operators, their files as they are, in the images that their Containerfile makes."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from allranks.spec.load import load_job
from tests.cluster.cluster import Cluster
from tests.cluster.engines.conftest import PATIENCE, Space
from tests.cluster.images import kinds
from tests.cluster.layout import HOME
from tests.cluster.node_config import mounted
from tests.examples.commands import EXAMPLES, copy_of

pytestmark = pytest.mark.timeout(900)  # every rank imports torch and DeepSpeed: minutes on a machine that is busy
SHAPES = {
    "jobset": ("jobset", ()),
    "trainjob": ("trainjob", ()),
    "pytorchjob": ("pytorchjob", ()),
    "mpijob": ("mpijob", ()),
    "mpijob, mpirun starts the agents": ("mpijob", ("engines: {mpijob: {start: mpirun}}",)),
    "mpijob, mpirun starts the ranks": ("mpijob", ("launcher: mpirun",)),
}
"""Engine, and what is added to the job's file."""
ALWAYS = ("trainjob", "mpijob, mpirun starts the ranks")
"""The two that have least in common; the others take half a minute each."""
LAST = re.compile(r"rank 0 \| (epoch (\d+)/\2: loss \S+|held-out accuracy .*)")


@pytest.fixture(scope="session")
def digits_here(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What digits says at its end on this machine."""
    return last_words(copy_of("digits", tmp_path_factory.mktemp("here")).run())


@pytest.fixture
def at_home(space: Space, monkeypatch: pytest.MonkeyPatch) -> Space:
    """The namespace is the client's current one, so that a job's file need not say it."""
    kubeconfig = space.folder / "kubeconfig"
    shutil.copy(space.cluster.kubeconfig, kubeconfig)
    here = f"--namespace={space.name}", f"--kubeconfig={kubeconfig}"
    space.cluster.kubectl("config", "set-context", "--current", *here)
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    return space


@pytest.mark.parametrize(
    "shape", [pytest.param(name, marks=() if name in ALWAYS else pytest.mark.long) for name in SHAPES]
)
def test_digits_ends_on_every_engine_as_on_this_machine(at_home: Space, digits_here: list[str], shape: str) -> None:
    engine, added = SHAPES[shape]
    put(at_home.cluster, "digits")
    file = at_home.folder / "job.yaml"
    file.write_text("\n".join([(EXAMPLES / "digits/job.yaml").read_text(), *added]))
    assert trained(at_home, engine, file) == digits_here


@pytest.mark.parametrize(
    "variant",
    [pytest.param("", id="as root", marks=pytest.mark.long), pytest.param("-nonroot", id="as another user")],
)
def test_photos_is_started_by_mpirun_in_the_image_of_its_containerfile(at_home: Space, variant: str) -> None:
    image = put(at_home.cluster, "photos")
    text = (EXAMPLES / "photos/job.yaml").read_text()
    file = at_home.folder / "job.yaml"
    file.write_text(text.replace(image, image + variant))
    assert load_job(file).image == image + variant
    loss, accuracy = trained(at_home, "mpijob", file)
    assert float(accuracy.split()[2]) > 0.85, (loss, accuracy)


def put(cluster: Cluster, name: str) -> str:
    """Have the cluster know an example's image, by the name that its job has for it."""
    image = load_job(EXAMPLES / name / "job.yaml").image or ""
    made = kinds.example(HOME / "images", EXAMPLES / name, f"{image}")
    cluster.mount({**made.mounts, kinds.BY_PIP: mounted()["/opt/torch"]})
    for archive in made.tars:
        cluster.import_image(archive)
    return image


def trained(space: Space, engine: str, file: Path) -> list[str]:
    done = space.allranks("run", "--engine", engine, str(file), timeout=3 * PATIENCE)
    assert done.returncode == 0, done.stderr
    return last_words(done.stdout)


def last_words(output: str) -> list[str]:
    """The loss of the last epoch and what was right of what was held out."""
    found = [match[1] for match in LAST.finditer(output)]
    assert len(found) == 2, output
    return found
