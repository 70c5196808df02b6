"""The app in a real browser; Debian's chromium and playwright's Python package drive it."""

import base64
import io
import json
import shutil
import signal
import socket
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image

import tiny_run
from tiny_run import Run, follow, start, trained
from vit5_dense.config import load_config
from vit5_dense.inference import Segmenter
from vit5_dense.pictures import colorize, read_picture

CHROMIUM = shutil.which('chromium')
FLAGS = ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-sync']
FLAGS += ['--disable-background-networking', '--disable-component-update']
# Found by the server's Python: notes every address that it connects to or asks for.
SPY = """
import json, sys
def note(event, args):
    if event in ('socket.connect', 'socket.getaddrinfo'):
        address = args[1] if event == 'socket.connect' else args[0]
        with open({file!r}, 'a') as file:
            print(json.dumps([event, str(address)]), file=file)
sys.addaudithook(note)
"""
DROP = """([zone, name, content]) => {
    const bytes = Uint8Array.from(atob(content), c => c.charCodeAt(0));
    const data = new DataTransfer();
    data.items.add(new File([bytes], name, {type: 'image/png'}));
    const event = new DragEvent('drop', {dataTransfer: data, bubbles: true, cancelable: true});
    document.querySelector(zone).dispatchEvent(event);
}"""


class Server(NamedTuple):
    """A running app: its address, the file of what it connected to, and the run it shows."""

    url: str
    connections: Path
    run: Run


def serve(run: Run, folder: Path) -> Iterator[Server]:
    """The app for a run, in a process of its own."""
    connections = folder / 'connections.txt'
    (folder / 'sitecustomize.py').write_text(SPY.format(file=str(connections)))
    path = f'{folder}:{tiny_run.ENV["PYTHONPATH"]}'
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(tiny_run.ENV, 'PYTHONPATH', path)
        process = start('app', run.config, run.checkpoint, '--port', 0, '--device', 'cpu')
    try:
        line = follow(process, '^open http').splitlines()[-1]
        yield Server(line.split()[1], connections, run)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 0
    assert 'Traceback' not in output, output


@pytest.fixture(scope='module')
def browser() -> Iterator[Any]:
    """A headless chromium."""
    pytest.importorskip('gradio')
    sync_api = pytest.importorskip('playwright.sync_api')
    if not CHROMIUM:
        pytest.skip('no chromium (Debian: apt install chromium)')
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope='module')
def server(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from serve(trained(tmp_path_factory), tmp_path_factory.mktemp('app'))


@pytest.fixture
def watched(browser: Any) -> Iterator[Any]:
    """An empty page; at the end nothing has failed on it and it has asked only this machine."""
    page = browser.new_page(viewport={'width': 1280, 'height': 900})
    page.set_default_timeout(20_000)
    errors: list[str] = []
    hosts: set[str | None] = set()
    page.on('console', lambda line: errors.append(line.text) if line.type == 'error' else None)
    page.on('pageerror', lambda error: errors.append(str(error)))
    page.on('request', lambda request: hosts.add(urlsplit(request.url).hostname))
    yield page
    page.close()
    assert errors == []
    assert hosts - {None} == {'127.0.0.1'}, 'None is data: and blob:'


@pytest.fixture
def page(watched: Any, server: Server) -> Any:
    """The app's page for the segmentor."""
    return opened(watched, server)


def opened(page: Any, server: Server) -> Any:
    page.goto(server.url)
    page.wait_for_selector('#drop input[type=file]', state='attached')
    return page


def drop(page: Any, name: str, content: bytes) -> None:
    """Drop a file on the page, as with the mouse."""
    page.evaluate(DROP, ['#drop button', name, base64.b64encode(content).decode()])


def wait_text(page: Any, place: str, text: str) -> None:
    page.locator(place).get_by_text(text).first.wait_for()


def source(page: Any, place: str) -> str | None:
    """Address of the picture that is shown at a place."""
    image = page.locator(f'{place} img')
    return image.get_attribute('src') if image.count() else None


def changed(page: Any, place: str, before: str | None) -> np.ndarray:
    """The picture at a place, once it is another than before."""
    script = (
        '([place, before]) => {const image = document.querySelector(place + " img");'
        ' return image && image.src !== before}'
    )
    page.wait_for_function(script, arg=[place, before])
    content = page.request.get(source(page, place)).body()
    return np.asarray(Image.open(io.BytesIO(content)).convert('RGB'))


def slide(page: Any, place: str, value: float) -> None:
    page.locator(f'{place} input[type=range]').fill(str(value))


def click_patch(page: Any, row: int, column: int) -> None:
    """Click on a patch of 32 px of the 448 x 256 picture, which is in the middle of its frame."""
    view = page.locator('#view img')
    frame = view.bounding_box()
    left, top = (frame['width'] - 448) / 2, (frame['height'] - 256) / 2
    view.click(position={'x': left + 32 * column + 16, 'y': top + 32 * row + 16})


def scene(run: Run) -> Path:
    return run.data / 'images' / 'val' / '000001.png'


def test_a_dropped_picture_is_segmented_and_shown_as_the_controls_say(
    page: Any, server: Server
) -> None:
    path = scene(server.run)
    model = Segmenter(load_config(str(server.run.config)), server.run.checkpoint)
    labels = model(read_picture(path))
    numbers, counts = np.unique(labels, return_counts=True)
    colors = colorize(labels, model.palette)
    large, other = numbers[counts.argmax()], numbers[counts.argmin()]
    assert large != other

    drop(page, path.name, path.read_bytes())
    wait_text(page, '#status', '000001.png (224 x 128 pixels)')
    first = changed(page, '#shown', None)
    assert first.shape == (256, 448, 3), 'enlarged'
    rows = page.locator('#table').inner_text().split('%', 1)[1].split()
    shares = [f'{100 * count / labels.size:.2f}'.rstrip('0').rstrip('.') for count in counts]
    expected = zip(counts, numbers, shares, strict=True)
    assert rows == [
        cell
        for count, number, share in sorted(expected, reverse=True)
        for cell in (str(number), model.classes[number], str(count), share)
    ]

    before = source(page, '#shown')
    slide(page, '#opacity', 1)
    np.testing.assert_array_equal(changed(page, '#shown', before)[::2, ::2], colors)

    before = source(page, '#shown')
    page.locator('#table').get_by_text(model.classes[other], exact=True).last.click()
    alone = changed(page, '#shown', before)[::2, ::2]
    np.testing.assert_array_equal(alone[labels == other], colors[labels == other])
    assert (alone != colors).any(2)[labels != other].mean() > 0.5

    before = source(page, '#shown')
    page.locator('#every').click()
    np.testing.assert_array_equal(changed(page, '#shown', before)[::2, ::2], colors)


def test_bad_files_get_a_message_and_the_page_goes_on(page: Any, server: Server) -> None:
    whole = scene(server.run).read_bytes()
    bad = {'text.png': b'hello', 'empty.png': b'', 'broken.png': whole[:5000], 'notes.txt': b'hi'}
    for name, content in bad.items():
        drop(page, name, content)
        wait_text(page, '#status', f'{name} cannot be read: ')
        assert 'bad' in page.locator('#status span').first.get_attribute('class')
        assert source(page, '#shown') is None
    drop(page, 'good.png', whole)
    wait_text(page, '#status', 'good.png (224 x 128 pixels)')
    assert changed(page, '#shown', None).shape == (256, 448, 3)


def test_the_second_tab_shows_what_is_clicked_on(page: Any, server: Server) -> None:
    tab = page.get_by_role('tab').nth(1)
    tab.click()
    wait_text(page, '#note', 'drop a picture on the first tab')
    page.get_by_role('tab').first.click()
    drop(page, 'scene.png', scene(server.run).read_bytes())
    wait_text(page, '#status', 'scene.png')
    tab.click()
    wait_text(page, '#note', '14 x 8 patches, 2 blocks')
    maps = [changed(page, '#map', None)]
    framed = changed(page, '#view', None)

    def after(act: Any) -> None:
        before = source(page, '#map')
        act()
        maps.append(changed(page, '#map', before))

    marked = source(page, '#view')
    after(lambda: click_patch(page, 2, 11))
    moved = (changed(page, '#view', marked) != framed).any(2)
    assert moved[2 * 32 : 3 * 32, 11 * 32 : 12 * 32].any(), 'the frame is in row 2, column 11'
    after(lambda: slide(page, '#block', 1))
    for choice in ('CLS', 'register 1', 'register 4', 'features (PCA)'):
        after(lambda choice=choice: page.get_by_label(choice, exact=True).click())
    assert {one.shape for one in maps} == {(256, 448, 3)}
    assert all((one != other).any() for one, other in pairwise(maps))
    after(lambda: click_patch(page, 7, 0))
    assert page.get_by_label('one patch').is_checked()

    marked = source(page, '#view')  # another picture is looked into anew
    page.get_by_role('tab').first.click()
    drop(page, 'other.png', (server.run.data / 'images' / 'val' / '000002.png').read_bytes())
    wait_text(page, '#status', 'other.png')
    tab.click()
    changed(page, '#view', marked)


def test_the_server_is_bound_to_loopback_and_calls_nobody(page: Any, server: Server) -> None:
    address = urlsplit(server.url)
    assert address.hostname == '127.0.0.1'
    with socket.socket() as probe, pytest.raises(ConnectionRefusedError):
        probe.connect(('127.0.0.2', address.port))  # which any address but this one would answer
    calls = [json.loads(line) for line in server.connections.read_text().splitlines()]
    assert calls, 'gradio asks its own server whether it is up'
    assert not [call for call in calls if '127.0.0.1' not in call[1]]
