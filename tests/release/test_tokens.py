"""Tokens as `gram token` makes them."""

import base64

from gram_platform.cli import main
from gram_platform.release.serving.policy import token_digest
from gram_platform.release.serving.policy_file import load_policy
from tests.release.serving.planted import POLICY

NUM_TOKENS, NUM_BITS = 40, 256


def test_a_token_has_256_random_bits_and_the_policy_its_hash_alone(tmp_path, capsys):
    """Of 40 tokens every bit has both values: a bit that is drawn fails this once in 10^9 runs."""
    path, tokens = tmp_path / "policy.toml", []
    path.write_text(POLICY)
    for number in range(NUM_TOKENS):
        main(["token", f"t{number}", "--policy", str(path), "--profiles", "open"])
        tokens.append(capsys.readouterr().out.strip())
    parts = [base64.urlsafe_b64decode(token.partition("-")[2] + "=") for token in tokens]
    assert {8 * len(part) for part in parts} == {NUM_BITS}
    values = [int.from_bytes(part, "big") for part in parts]
    assert all(
        0 < sum(value >> bit & 1 for value in values) < NUM_TOKENS for bit in range(NUM_BITS)
    )
    assert [rule.sha256 for rule in load_policy(str(path)).tokens] == [
        token_digest(token) for token in tokens
    ]
    assert not [token for token in tokens if token.partition("-")[2] in path.read_text()]
