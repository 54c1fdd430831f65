"""Checks that settings of TLS and the PROXY protocol are complete: half of a pair would make another listener than the
operator meant."""

from __future__ import annotations

from gateway.config.settings import Http


def wrong_together(http: Http) -> tuple[str, str] | None:
    """The setting that is incomplete or conflicts, and a message; None if there is none."""
    if bool(http.tls_cert) != bool(http.tls_key):
        missing, given = ("tls_key", "tls_cert") if http.tls_cert else ("tls_cert", "tls_key")
        return f"http.{given}", f"http.{given} needs http.{missing} beside it: a certificate and its key"
    if http.tls_client_ca and not http.tls_cert:
        return "http.tls_client_ca", "http.tls_client_ca asks clients for certificates, which needs http.tls_cert"
    if http.proxy_protocol and not http.trusted_proxies:
        return "http.proxy_protocol", "http.proxy_protocol needs http.trusted_proxies: who may say whom it speaks for"
    if http.trusted_proxies and not http.proxy_protocol:
        return (
            "http.trusted_proxies",
            "http.trusted_proxies are taken at their word in the PROXY header only, never in X-Forwarded-For; "
            "set http.proxy_protocol = true, and send-proxy-v2 in the proxy",
        )
    if http.proxy_protocol and http.tls_cert:
        return (
            "http.tls_cert",
            "this version reads the PROXY header on a plain listener only; end TLS in the proxy, or leave "
            "http.proxy_protocol out",
        )
    return None
