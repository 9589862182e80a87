"""The address of a server: who can reach it, under which names, and with which token."""

import ipaddress
import os
import re
import socket
from pathlib import Path

from offrec.errors import InputError
from offrec.serving.middleware import RequestChecks
from offrec.serving.options import ServerOptions

MIN_TOKEN_CHARACTERS = 16
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
HOST_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?|[0-9a-f:]+")


def check_address(options: ServerOptions) -> None:
    """Raise an error if other machines can reach the address and the server requires no token.

    Args:
        options: The options of the server.

    Raises:
        InputError: If the address is not a loopback address and neither a token nor `insecure` is set.
    """
    if options.token is not None or options.insecure or is_loopback(options.host):
        return
    raise InputError(
        f"--host {options.host} can be reached from other machines, so it needs a token; set --token-file or "
        "OFFREC_TOKEN, or --insecure if a proxy or firewall protects the server."
    )


def is_loopback(host: str) -> bool:
    """Return whether only programs on the same machine can reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listen(host: str, port: int, shared: bool = False) -> socket.socket:
    """Open a listening socket. It is opened before policies are loaded, so that early clients wait.

    Args:
        host: The address.
        port: The port; 0 takes a free one.
        shared: Whether further sockets of this user may listen on the same port. The system then distributes the
            connections evenly; workers that accept from one socket can get very different numbers.

    Returns:
        The socket.

    Raises:
        InputError: If the address cannot be used.
    """
    listener = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        if listener is not None:
            listener.close()
        raise InputError(
            f"--port {port} on host {host} cannot be used ({error.strerror}); choose another --port or --host."
        ) from error
    return listener


def read_token(file: Path | None) -> str | None:
    """Read the bearer token from a file or, without one, from the environment variable OFFREC_TOKEN.

    Args:
        file: The file; None to read the environment variable.

    Returns:
        The token, or None if neither is set.

    Raises:
        InputError: If the file cannot be read or the token is too short or not plain ASCII.
    """
    if file is None:
        token, source = os.environ.get("OFFREC_TOKEN"), "OFFREC_TOKEN"
    else:
        source = f"--token-file {file}"
        try:
            token = file.read_text().strip()
        except (OSError, ValueError) as error:
            raise InputError(f"{source} cannot be read ({error}); expected a file that contains the token.") from error
    if token is None:
        return None
    if len(token) < MIN_TOKEN_CHARACTERS or not token.isascii() or not token.isprintable() or " " in token:
        raise InputError(
            f"{source} contains an invalid token; expected at least {MIN_TOKEN_CHARACTERS} ASCII characters without "
            "spaces, for example from `openssl rand -hex 32`."
        )
    return token


def request_checks(options: ServerOptions) -> RequestChecks:
    """Return what is checked before a request is read.

    Args:
        options: The options of the server.

    Returns:
        The checks. On a loopback address, requests must use its name or one of `allow_hosts`.
    """
    hosts = None
    if is_loopback(options.host) or options.allow_hosts:
        hosts = frozenset((*LOOPBACK_NAMES, options.host.lower(), *options.allow_hosts))
    return RequestChecks(
        options.token,
        hosts,
        frozenset(options.allow_hosts),
        options.limits.body_bytes,
        options.list_limits.body_bytes,
        options.connections.transfer_seconds,
    )


def parse_hosts(text: str) -> tuple[str, ...]:
    """Read the value of --allow-host.

    Args:
        text: Host names, separated by commas.

    Returns:
        The names in lower case.

    Raises:
        InputError: If a name contains more than a host, for example a port.
    """
    names = tuple(name.strip().lower() for name in text.split(",") if name.strip())
    for name in names:
        if not HOST_NAME.fullmatch(name):
            raise InputError(f"--allow-host must contain host names without scheme and port; got {name!r}.")
    return names
