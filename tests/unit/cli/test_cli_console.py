"""What `inorder up --console` tells its console of TLS."""

from __future__ import annotations

import pytest

from inorder.cli.console import tls_environment
from inorder.config import NetConfig

OWN = {"tls_certificate": "cert.pem", "tls_key": "key.pem"}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {}),
        ({"tls_client_trust": "ca.pem"}, {}),
        ({"tls_mode": "enforcing"}, {"TLS": "true", "TLS_INSECURE": "true"}),
        ({"tls_mode": "enforcing", "tls_client_trust": "ca.pem"},
         {"TLS": "true", "TLS_CA": "ca.pem"}),
        ({"tls_enable": True}, {"TLS": "true"}),
        ({"tls_enable": True, "tls_client_verify": False}, {"TLS": "true", "TLS_INSECURE": "true"}),
        ({"tls_enable": True, "tls_client_auth": "require", "tls_trust": "ca.pem", **OWN},
         {"TLS": "true", "TLS_CERT": "cert.pem", "TLS_KEY": "key.pem"}),
        ({"tls_enable": True, "tls_client_auth": "require", "tls_trust": "ca.pem", **OWN,
          "tls_client_certificate": "one.pem", "tls_client_key_password": "secret"},
         {"TLS": "true", "TLS_CERT": "one.pem", "TLS_KEY_PASSWORD": "secret"}),
    ],
)  # fmt: skip
def test_the_console_uses_tls_as_its_servers_do(settings: dict[str, object],
                                                expected: dict[str, str]) -> None:  # fmt: skip
    """It checks certificates where the servers check each other's, by the same authority."""
    found = tls_environment(NetConfig(**settings), {})  # type: ignore[arg-type]
    assert found == {f"INORDER_{name}": value for name, value in expected.items()}


def test_what_the_environment_says_of_tls_stays() -> None:
    """An authority of the environment is not weakened to any, nor a certificate replaced."""
    net = NetConfig(tls_mode="enforcing", tls_client_auth="require", tls_trust="x.pem", **OWN)
    env = {"INORDER_TLS_CA": "my.pem", "INORDER_TLS_CERT": "mine.pem"}
    assert tls_environment(net, env) == {"INORDER_TLS": "true"}


def test_the_console_gets_no_certificate_that_is_a_user() -> None:
    """With tls_users a certificate has rights, and the console has none of its own."""
    net = NetConfig(tls_enable=True, tls_client_auth="require", tls_trust="x.pem", tls_users=True,
                    **OWN)  # fmt: skip
    assert tls_environment(net, {}) == {"INORDER_TLS": "true"}
