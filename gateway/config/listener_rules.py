"""Checks that settings of TLS and the PROXY protocol are complete: half of a pair would make another listener than the
operator meant."""

from __future__ import annotations

from gateway.config.settings import Http


def wrong_together(http: Http) -> tuple[str, str] | None:
    """The setting that is incomplete or conflicts, and a message; None if there is none."""
    if bool(http.tls_cert) != bool(http.tls_key):
        missing, given = ("tls_key", "tls_cert") if http.tls_cert else ("tls_cert", "tls_key")
        return f"http.{given}", f"http.{given} requires http.{missing}: set the certificate and its key together"
    if http.tls_client_ca and not http.tls_cert:
        return "http.tls_client_ca", "http.tls_client_ca requires http.tls_cert: only TLS clients can show certificates"
    if http.proxy_protocol and not http.trusted_proxies:
        return (
            "http.proxy_protocol",
            "http.proxy_protocol requires http.trusted_proxies: the proxies that may send a PROXY header",
        )
    if http.trusted_proxies and not http.proxy_protocol:
        return (
            "http.trusted_proxies",
            "http.trusted_proxies applies only to the PROXY header, never to X-Forwarded-For; set "
            "http.proxy_protocol = true, and send-proxy-v2 in the proxy",
        )
    if http.proxy_protocol and http.tls_cert:
        return (
            "http.tls_cert",
            "this version supports the PROXY header only without TLS; terminate TLS in the proxy, or remove "
            "http.proxy_protocol",
        )
    return None
