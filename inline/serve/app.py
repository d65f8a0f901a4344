"""The page and its server. Nothing but this machine is asked for anything, or answered."""

import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inline.errors import UserError
from inline.serve.desk import WAITING, Answer, Desk, Visit
from inline.serve.panels import show_message

if TYPE_CHECKING:
    import gradio as gr

HOST = '127.0.0.1'
TITLE = 'InLine: what a token sees'
INTRODUCTION = (
    'Drop an image to see the prediction, then click a point of it: every layer shows which places the '
    'token at that point attends to, and what the local residual adds to it from each of its neighbours.'
)
LEGEND = (
    'Attention: weight × number of places, 1 is what chance gives; <b class="il-red">red</b> is more, '
    '<b class="il-blue">blue</b> less, grey is out of sight. The frame is the token that was clicked. '
    'Residual: how much each of the nine neighbours adds to the token, as the length of a vector; grey is '
    'beyond the border. Above it, the lengths of their sum and of what attention gives the same token.'
)
ALL_HEADS = 'mean of all'
# The page tells where it was clicked as shares of the image's sides, whatever size it is shown in.
ON_CLICK = """
element.addEventListener('click', event => {
  const image = event.target.closest('.il-click');
  if (!image) return;
  const box = image.getBoundingClientRect();
  trigger('click', {x: (event.clientX - box.left) / box.width, y: (event.clientY - box.top) / box.height});
});
"""
STYLE = Path(__file__).with_name('style.css')
# Visitors whose images are kept in memory; it is a page for one.
MAX_SESSIONS = 8


def build_page(desk: Desk) -> 'gr.Blocks':
    import gradio as gr

    heads = [ALL_HEADS, *(str(head + 1) for head in range(desk.most_heads()))]
    with gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(60, 60)) as page:
        visit = gr.State()
        gr.HTML(f'<header class="il-header"><h1>{TITLE}</h1><p>{INTRODUCTION}</p></header>')
        with gr.Row():
            with gr.Column(scale=5, min_width=320):
                drop = gr.File(label='Image', height=150, elem_id='il-drop')
                message = gr.HTML(show_message(WAITING), elem_id='il-message')
                picture = gr.HTML('', js_on_load=ON_CLICK, elem_id='il-picture')
            with gr.Column(scale=7, min_width=320):
                predictions = gr.HTML('', elem_id='il-prediction')
        with gr.Column(visible=False) as below:
            with gr.Row(elem_id='il-explain'):
                with gr.Column(scale=1):
                    gr.HTML(f'<p class="il-explain">{LEGEND}</p>')
                with gr.Column(scale=0, min_width=190):
                    head = gr.Dropdown(heads, value=ALL_HEADS, label='Heads', elem_id='il-heads')
            layers = gr.HTML('', elem_id='il-layers')
        outputs = [visit, message, picture, predictions, layers, below]

        def show(answer: Answer) -> list[Any]:
            pieces = (answer.visit, answer.message, answer.picture, answer.predictions, answer.layers)
            shown = gr.skip() if answer.layers is None else gr.update(visible=bool(answer.layers))
            return [*(gr.skip() if piece is None else piece for piece in pieces), shown]

        def dropped(path: str, name: str) -> list[Any]:
            try:
                return [None, *show(desk.accept(Path(path), read_head(name)))]
            finally:
                # It is in memory now, or was refused.
                Path(path).unlink(missing_ok=True)

        def clicked(seen: Visit | None, event: gr.EventData) -> list[Any]:
            return show(desk.point(seen, float(event.x), float(event.y)))

        def chosen(seen: Visit | None, name: str) -> list[Any]:
            return show(desk.choose_head(seen, read_head(name)))

        hidden: dict[str, Any] = {'api_visibility': 'private', 'show_progress': 'minimal'}
        drop.upload(dropped, [drop, head], [drop, *outputs], **hidden)
        picture.click(clicked, visit, outputs, **hidden)
        head.change(chosen, [visit, head], outputs, **hidden)
    return page


def read_head(name: str) -> int | None:
    """What was chosen, counted from 0; None for all of them."""
    return None if name == ALL_HEADS else int(name) - 1


@contextmanager
def running(desk: Desk, port: int) -> Iterator[str]:
    """Serve the page on this machine until the end of the block; gives its address."""
    with tempfile.TemporaryDirectory(prefix='inline-serve-') as folder:
        # Gradio reads these when it is imported.
        os.environ.update(GRADIO_ANALYTICS_ENABLED='False', GRADIO_TEMP_DIR=folder, HF_HUB_OFFLINE='1')
        import gradio as gr

        check_port(port)
        page = build_page(desk).queue(max_size=MAX_SESSIONS)
        fonts = ('system-ui', 'sans-serif')
        _, address, _ = page.launch(
            server_name=HOST,
            server_port=port,
            share=False,
            allowed_paths=[],
            max_file_size=desk.limits.bytes,
            state_session_capacity=MAX_SESSIONS,
            theme=gr.themes.Default(font=fonts, font_mono=('ui-monospace', 'monospace')),
            css_paths=STYLE,
            footer_links=[],
            ssr_mode=False,
            mcp_server=False,
            quiet=True,
            prevent_thread_lock=True,
        )
        try:
            yield address
        finally:
            page.close(verbose=False)


def check_port(port: int) -> None:
    if not 1 <= port <= 65535:
        raise UserError(f'--port {port}: must be from 1 to 65535')
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise UserError(f'--port {port} cannot be used: {error.strerror}') from error
