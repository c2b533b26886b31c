"""Registers exported checkpoints in MLflow's model registry."""

from collections.abc import Mapping
from pathlib import Path

from gram_platform.config.identity import hash_file
from gram_platform.tracking import entry as content
from gram_platform.tracking.connection import Connection

EXPORT = "gram.export"  # tag of a model version: the hash of its export's record


def register_export(
    tracking_uri: str, name: str, record: Path, mlflow_run_id: str, tags: Mapping[str, str], note: str
) -> str:
    """Makes the folder of an export's `record` the newest version of model `name`; returns the version's number.

    The files become artifacts of the MLflow run. An export that is registered under the name keeps its version and gets
    the tags. Raises TrackingUnavailable.
    """
    digest = hash_file(record)
    with Connection(tracking_uri, "gram").reaching() as client:
        if not client.search_registered_models(f"name = '{name}'"):
            client.create_registered_model(name)
        for version in client.search_model_versions(f"name = '{name}'"):
            if version.tags.get(EXPORT) == digest:
                for key, value in tags.items():
                    client.set_model_version_tag(name, version.version, key, value)
                return str(version.version)
        place = f"exports/{digest[:16]}"
        client.log_artifacts(mlflow_run_id, str(record.parent), place)
        source = f"{client.get_run(mlflow_run_id).info.artifact_uri}/{place}"
        tags = {**tags, EXPORT: digest, content.KIND: "export"}
        made = client.create_model_version(name, source, mlflow_run_id, tags, description=note, await_creation_for=0)
        return str(made.version)
