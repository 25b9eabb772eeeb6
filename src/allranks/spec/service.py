"""What the user writes for a gang that serves: ``kind: Service``, a model of ours or any server that needs ranks."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from allranks.spec.field import KUBERNETES, EnvName, Memory, Part, Run, Text, Word, about
from allranks.spec.job import Failure, Gang, Job, Restarts, Surroundings
from allranks.spec.units import Quantity

SECRET_KEY = r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/[-._a-zA-Z0-9]{1,253}$"
KEY_VARIABLE = "ALLRANKS_API_KEY"
"""Variable of a container in which a rank finds the key that is in a Secret."""
OF_THE_MODEL = ("dtype", "shard", "limits", "api_key", "chat_template")
"""Fields that only our own server reads."""


def _url_path(path: str) -> str:
    if not path.startswith("/"):
        raise ValueError("allowed is a path such as /health")
    return path


class Limits(Part):
    """How much one gang takes on; what is beyond is refused at once, with an error that says which limit."""

    context: Annotated[
        int | None, about("Tokens of a prompt and its answer together, a count; none means the model's.", ge=1)
    ] = None
    concurrent: Annotated[int, about("Requests that are computed at a time, a count.", ge=1, le=4096)] = 64
    queue: Annotated[int, about("Requests that may wait beside them, a count.", ge=0, le=1_000_000)] = 256
    choices: Annotated[int, about("Answers to one prompt (n of a request), a count.", ge=1, le=1024)] = 8
    body: Annotated[Memory, about("Size of a request, in bytes.")] = Quantity.parse("4Mi")


class ApiKey(Part):
    """Where the key is that clients must send: it is never written down, logged or put on a command line."""

    env: Annotated[EnvName | None, about("Variable of the shell that starts the service.", "local, ray")] = None
    file: Annotated[Text | None, about("File that holds the key and nothing else.", "local, ray")] = None
    secret: Annotated[
        Annotated[str, Field(pattern=SECRET_KEY)] | None,
        about("NAME/KEY of a Secret; on ray of a RayService's.", f"{KUBERNETES}, ray"),
    ] = None

    @model_validator(mode="after")
    def _has_one_source(self) -> ApiKey:
        if sum(source is not None for source in (self.env, self.file, self.secret)) != 1:
            raise ValueError("an api_key has one of 'env', 'file' and 'secret'")
        return self


class Serving(Gang):
    """What is served, and how."""

    kind: Annotated[Literal["Service"], about("What the file describes.")] = "Service"
    run: Annotated[
        Run | None, about("Command of every rank, for a server other than allranks' own; it takes model's place.")
    ] = None
    model: Annotated[
        Annotated[Text, Field(min_length=1)] | None,
        about("Model that allranks serves: a folder with config.json and safetensors, or a name on the hub."),
    ] = None
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"], about("Number format of the weights; auto is the model's.")
    ] = "auto"
    shard: Annotated[
        Literal["auto", "transformers", "deepspeed"],
        about("What cuts the model in as many pieces as there are ranks; auto takes what covers its architecture."),
    ] = "auto"
    limits: Annotated[Limits, about("How much the service takes on.")] = Limits()
    replicas: Annotated[int, about("How many such gangs there are, a count.", ge=1, le=1000)] = 1
    port: Annotated[int, about("TCP port that node 0 listens on.", ge=1, le=65535)] = 8000
    host: Annotated[
        Word | None,
        about("Address that node 0 listens on; none means this machine alone (local) or every address (containers)."),
    ] = None
    ready: Annotated[
        Annotated[Text, AfterValidator(_url_path)],
        about("HTTP path on node 0 that answers 200 once the service can be used."),
    ] = "/ready"
    api_key: Annotated[ApiKey | None, about("Key that clients must send; none means that anybody may ask.")] = None
    chat_template: Annotated[
        Annotated[Text, Field(min_length=1)] | None,
        about("Jinja file that makes a prompt of a chat; none means the tokenizer's own."),
    ] = None


class ServiceFailure(Failure):
    """As a job's; a service outlives more, as it is there for longer."""

    restarts: Restarts = 1000


class Service(Surroundings, Serving):
    """A gang of ``nodes`` times ``ranks`` processes that answer HTTP requests on node 0 until they are told to end."""

    failure: Annotated[ServiceFailure, about("What happens when a rank or a node is lost.")] = ServiceFailure()

    @model_validator(mode="after")
    def _serves_one_thing(self) -> Service:
        if (self.model is None) == (self.run is None):
            raise ValueError("a Service has either 'model' or 'run'")
        foreign = [name for name in OF_THE_MODEL if self.run is not None and name in self.model_fields_set]
        if foreign:
            raise ValueError(f"{foreign[0]!r} is for 'model'; a server of your own ('run') is told by its command")
        if self.model is not None and self.launcher != "native":
            raise ValueError(f"launcher {self.launcher!r} is for 'run'; a model is served by native ranks")
        return self

    def gang(self, run: tuple[str, ...] | None = None) -> ServingGang:
        """The job that is the service's gang; ``run`` is the command of a rank that serves ``model``."""
        shared = {name: getattr(self, name) for name in self.model_fields_set & set(Job.model_fields)}
        return ServingGang(
            **{**shared, "failure": self.failure, "kind": "Job", "run": self.run if run is None else run}
        )


class ServingGang(Job):
    """The gang of a service, which is no file's kind."""

    @property
    def serves(self) -> bool:
        return True


Spec = Job | Service
