"""Several models behind one interface, one of them killed while many ask; and a Ray that was there
before."""

import asyncio
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterable

import pytest

from gram_platform.release.serving.answers import UNCONFIRMED
from gram_platform.release.serving.batch import LENGTH, GenerationRequest
from gram_platform.release.serving.engine import Delivery
from gram_platform.release.serving.policy import LEASE_S, token_digest
from tests.ending import exit_code
from tests.release.serving.load import hammer
from tests.release.serving.planted import ANSWERS
from tests.release.serving.running import GRAM, environment, gram_serve
from tests.release.serving.test_serve import planted_questions

pytestmark = pytest.mark.ray


@pytest.mark.slow
def test_while_one_of_two_models_is_gone_the_other_answers(tmp_path, capsys):
    with gram_serve(tmp_path, "--replicas", "2") as running:
        questions, models = planted_questions(running), running.replicas("Model")
        assert len(models) == 2
        killing = threading.Timer(5.0, models[0].kill)
        killing.start()
        address = f"http://127.0.0.1:{running.site.port}"
        record = asyncio.run(hammer(address, [running.site.plan.tokens], questions, 40, 20.0))
        running.wait_until(lambda: len(running.replicas("Model")) == 2)
    with capsys.disabled():
        print(f"\none of two models killed under 40 clients: {record.summary()}")
    assert not record.wrong
    assert set(record.answered) == set(ANSWERS)
    assert all("interrupted" in why for why in record.lost)
    assert len(record.lost) <= 40  # each client at most the one that was being answered


@pytest.mark.slow
def test_a_given_ray_is_left_unchanged(tmp_path, ray_cluster):
    before = ray_cluster.available_resources()["CPU"]
    with gram_serve(
        tmp_path, "--ray-address", ray_cluster.get_runtime_context().gcs_address
    ) as running:
        texts = {p: running.site.complete(p).json["choices"][0]["text"] for p in ANSWERS}
        assert len(set(texts.values())) == len(ANSWERS)
        assert ray_cluster.available_resources().get("CPU", 0.0) == before - 1
        running.process.send_signal(signal.SIGINT)
        assert exit_code(running.process, running.log) == 0
    running.wait_until(lambda: ray_cluster.available_resources()["CPU"] == before)


@pytest.mark.slow
def test_nobody_is_answered_once_the_command_was_killed(tmp_path, ray_cluster):
    """Its application stays on a given Ray and refuses everybody, since nobody follows the policy
    any more; a second command is refused."""
    from ray import serve

    address = ray_cluster.get_runtime_context().gcs_address
    with gram_serve(tmp_path, "--ray-address", address) as running:
        (name,) = serve.status().applications
        model = serve.get_deployment_handle("Model", name).options(stream=True)
        asked = (
            token_digest(running.site.plan.tokens["lisp"]),
            "lisp",
            GenerationRequest((1,), 3),
            True,
        )
        try:
            running.process.kill()
            running.process.wait()
            killed_at = time.monotonic()
            # A restart of the command needs some seconds.
            assert end_of(model.stream.remote(*asked)) == LENGTH
            while (end := end_of(model.stream.remote(*asked))) == LENGTH:
                assert time.monotonic() - killed_at < LEASE_S + 1, "somebody is still answered"
                time.sleep(0.2)
            assert end == UNCONFIRMED
            # Ray Serve's proxy goes on with the given Ray.
            assert running.site.complete("lisp").status == 503
            storage = tmp_path / "storage"
            (run_id,) = os.listdir(storage / "runs")
            second = [
                *GRAM,
                "serve",
                run_id,
                "--storage",
                str(storage),
                "--policy",
                str(storage / "policy.toml"),
            ]
            second += ["--port", "0", "--ray-address", address]
            ended = subprocess.run(second, env=environment(), capture_output=True, text=True)
            assert ended.returncode == 2
            assert f"ray_address='gram-{run_id}-" in ended.stderr
        finally:
            serve.shutdown()


def end_of(deliveries: Iterable[Delivery]) -> str:
    return [delivery.end for delivery in deliveries][-1]
