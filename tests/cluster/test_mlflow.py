"""The MLflow server's files: one against the other, and both against the MLflow that is
installed."""

import configparser
from pathlib import Path

import mlflow
import pytest
from mlflow import environment_variables
from mlflow.cli import server

from tests.cluster import rules
from tests.cluster.files import CLUSTER, compose, constraint, the

CONSTRAINTS = CLUSTER.parent / "constraints.txt"
SHIPPED = Path(mlflow.__file__).parent / "server/auth/basic_auth.ini"


def container() -> dict:
    (found,) = the("Deployment", "mlflow")["spec"]["template"]["spec"]["containers"]
    return found


def kubernetes_environment() -> dict[str, str]:
    """Name -> value, or SECRET/KEY where it comes from a secret."""
    found = {}
    for variable in container()["env"]:
        reference = variable.get("valueFrom", {}).get("secretKeyRef")
        found[variable["name"]] = (
            f"{reference['name']}/{reference['key']}" if reference else variable["value"]
        )
    return found


def options(command: list[str]) -> dict[str, str]:
    assert command[:2] == ["mlflow", "server"]
    return dict(zip(command[2::2], command[3::2], strict=True))


def test_both_start_the_same_server():
    service = compose()["services"]["mlflow"]
    assert service["command"] == container()["args"]
    assert service["image"] == container()["image"]
    assert set(service["environment"]) == set(kubernetes_environment())
    for name in ("MLFLOW_BACKEND_STORE_URI", "MLFLOW_AUTH_CONFIG_PATH"):
        assert service["environment"][name] == kubernetes_environment()[name]


@pytest.mark.skipif(
    mlflow.__version__ != constraint("mlflow"), reason="the image has the pinned MLflow"
)
def test_installed_server_knows_the_options_and_variables():
    known = {name: option for option in server.params for name in option.opts}
    for name, value in options(container()["args"]).items():
        assert name in known, f"mlflow server has no {name}"
        known[name].type_cast_value(None, value)
    by_option = {option.envvar for option in server.params if isinstance(option.envvar, str)}
    for name in kubernetes_environment():
        is_known = name in by_option or hasattr(environment_variables, name) or name == "PGPASSWORD"
        assert is_known, f"MLflow does not read {name}"


def test_users_file_has_fields_that_mlflow_has():
    """No password stands in it; it names the database of the runs, through the driver that the
    image installs.
    """
    ours, shipped = configparser.ConfigParser(), configparser.ConfigParser()
    ours.read(CLUSTER / "mlflow/basic_auth.ini")
    shipped.read(SHIPPED)
    assert set(ours["mlflow"]) <= set(shipped["mlflow"])
    assert "admin_password" not in ours["mlflow"]
    assert ours["mlflow"]["database_uri"] == kubernetes_environment()["MLFLOW_BACKEND_STORE_URI"]
    assert ours["mlflow"]["database_uri"].startswith("postgresql+psycopg://")
    assert (CLUSTER / "Containerfile").read_text().count("'psycopg[binary]'") == 2, (
        "an image lacks the driver"
    )
    assert {"psycopg", "psycopg-binary"} <= {
        line.split("==")[0] for line in CONSTRAINTS.read_text().splitlines()
    }
    assert options(container()["args"])["--app-name"] == "basic-auth"


def test_host_names_that_people_use_are_allowed():
    """By the server's own check: the address of the studies and of `port-forward` pass, any other
    is refused.
    """
    from mlflow.server.security_utils import is_allowed_host_header

    allowed = options(container()["args"])["--allowed-hosts"].split(",")
    assert all(
        is_allowed_host_header(allowed, host)
        for host in ("mlflow:5000", "localhost:5000", "127.0.0.1:5000")
    )
    assert not is_allowed_host_header(allowed, "example.org:5000")


def test_compose_is_closed_and_names_what_is_missing():
    services = compose()["services"]
    assert services["mlflow"]["ports"] == ["${MLFLOW_BIND:-127.0.0.1}:5000:5000"]
    assert "ports" not in services["postgres"]
    secrets = [
        value
        for service in services.values()
        for name, value in service["environment"].items()
        if rules.SECRET_FIELD.search(name)
    ]
    assert len(secrets) == 4
    assert all(value.startswith("${") and value.endswith(":?}") for value in secrets)


def test_database_speaks_as_the_server_expects():
    """User and database of the URI are those that PostgreSQL creates, with one password for both
    sides.
    """
    (postgres,) = the("StatefulSet", "postgres")["spec"]["template"]["spec"]["containers"]
    variables = {variable["name"]: variable for variable in postgres["env"]}
    assert kubernetes_environment()["MLFLOW_BACKEND_STORE_URI"].endswith(
        "//mlflow@postgres:5432/mlflow"
    )
    for side in (
        {name: variables[name].get("value") for name in ("POSTGRES_USER", "POSTGRES_DB")},
        {
            name: compose()["services"]["postgres"]["environment"][name]
            for name in ("POSTGRES_USER", "POSTGRES_DB")
        },
    ):
        assert side == {"POSTGRES_USER": "mlflow", "POSTGRES_DB": "mlflow"}
    reference = variables["POSTGRES_PASSWORD"]["valueFrom"]["secretKeyRef"]
    assert kubernetes_environment()["PGPASSWORD"] == f"{reference['name']}/{reference['key']}"
    assert postgres["image"] == compose()["services"]["postgres"]["image"]
