"""The rest of a file by HTTP's Range, for ``download``; http and https only."""

import re
from collections.abc import Iterator
from http.client import HTTPException, HTTPResponse
from typing import NamedTuple
from urllib import request
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from ..errors import UserError

TIMEOUT = 30.0  # s without a byte
BLOCK = 1 << 18  # bytes


class Dropped(Exception):
    """A transfer that ended early; another try may go on."""


class Changed(Exception):
    """The server's file is another one than the part is of."""


class Note(NamedTuple):
    """What is known of the file that a part belongs to; it lies beside the part.

    Attributes:
        url: Where it comes from.
        validator: What the server knows this very file by: its ETag or date; None without both.
        size: Bytes of the whole file; None where the server does not tell: no way to go on.
    """

    url: str
    validator: str | None
    size: int | None


def web_opener() -> request.OpenerDirector:
    """An opener of http and https only, also after redirects; urllib's own reads local files."""
    opener = request.OpenerDirector()
    for handler in (
        request.ProxyHandler,
        request.UnknownHandler,
        request.HTTPHandler,
        request.HTTPSHandler,
        request.HTTPRedirectHandler,
        request.HTTPDefaultErrorHandler,
        request.HTTPErrorProcessor,
    ):
        opener.add_handler(handler())
    return opener


def check_url(url: str) -> None:
    """Refuse what is no address of a file on the web.

    Raises:
        UserError: If it is another scheme or has no host.
    """
    try:
        parts = urlsplit(url)
        known = parts.scheme in ('http', 'https') and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number
        known = False
    if not known:
        raise UserError(f'{url} is no address to download from: it must be http(s)://HOST/FILE')


def validator_of(response: HTTPResponse) -> str | None:
    """What ``If-Range`` may compare: a strong ETag, else the date."""
    tag = response.headers.get('ETag')
    return tag if tag and not tag.startswith('W/') else response.headers.get('Last-Modified')


def ask(url: str, have: int, note: Note | None) -> HTTPResponse:
    """Send the request for the rest of a file.

    Args:
        url: The file.
        have: Bytes of it that are here.
        note: About the file that they are of.

    Returns:
        The answer, which may be the whole file all the same.

    Raises:
        Changed: If the server's file ends before.
        Dropped: If there is no answer, or one that may change in a moment.
        UserError: If the answer is no.
    """
    headers = {'User-Agent': 'vit5_dense'}
    if have and note:
        headers['Range'] = f'bytes={have}-'
        if note.validator:
            headers['If-Range'] = note.validator
    try:
        asked = request.Request(url, headers=headers)  # noqa: S310  the opener knows no file:
        return web_opener().open(asked, timeout=TIMEOUT)
    except HTTPError as error:
        error.close()
        if error.code == 416 and have:
            raise Changed from error
        told = f'the server answers {error.code} {error.reason}'
        if error.code in (408, 429) or error.code >= 500:
            raise Dropped(told) from error
        raise UserError(
            f'{url} cannot be downloaded: {told}. Correct the address, or fetch the file by hand '
            'and name it by --zip'
        ) from error
    except URLError as error:
        if isinstance(error.reason, str):  # no fault of the network: a scheme, a missing host
            raise UserError(f'{url} cannot be downloaded: {error.reason}') from error
        raise Dropped(error.reason) from error
    except (HTTPException, OSError) as error:
        raise Dropped(repr(error)) from error


def goes_on(response: HTTPResponse, have: int, note: Note) -> bool:
    """Whether a partial answer is the rest of the file that the part is of."""
    found = re.fullmatch(r'bytes (\d+)-\d+/(\d+|\*)', response.headers.get('Content-Range', ''))
    if not found or int(found[1]) != have:
        return False
    same_size = note.size is None or found[2] in ('*', str(note.size))
    same_file = note.validator is None or validator_of(response) in (None, note.validator)
    return same_size and same_file


def blocks(response: HTTPResponse) -> Iterator[bytes]:
    """What comes, until the end of the connection.

    Raises:
        Dropped: If the connection fails.
    """
    while True:
        try:
            block = response.read(BLOCK)
        except (HTTPException, OSError) as error:
            raise Dropped(repr(error)) from error
        if not block:
            return
        yield block
