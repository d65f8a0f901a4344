"""The page and its server, which listens on 127.0.0.1 only and makes no requests to other machines."""

import os
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inline.apis.drawing import DEFAULT_SCORE_THR
from inline.apis.serve.controller import NO_IMAGE, Controller, PageUpdate, SessionState, to_rgb
from inline.apis.serve.html import render_examples, render_message
from inline.apis.serve.requests import guarded_app
from inline.openmmlab.patches import refuse_gradio_downloads
from inline.utils.errors import UserError

if TYPE_CHECKING:
    import gradio as gr

HOST = '127.0.0.1'
TITLE = 'InLine attention viewer'
INTRODUCTION = (
    'Upload an image or choose an example to see the prediction, then click a point in it. Every layer shows '
    'which positions the token at that point attends to, and what the local residual adds to it from each '
    'neighbour.'
)
LEGEND = (
    'Attention: weight × number of visible tokens; uniform attention is 1, '
    '<b class="il-red">red</b> is more, <b class="il-blue">blue</b> less, grey is not visible to the token. '
    'The frame is the clicked token. '
    'Residual: norm of the vector that each of the nine neighbours adds to the token; grey is outside the '
    'map. Above it are the norms of their sum and of the attention output for the same token.'
)
ALL_HEADS = 'mean of all'
# Sends the clicked point in relative positions, which do not depend on the displayed size.
ON_CLICK = """
element.addEventListener('click', event => {
  const image = event.target.closest('.il-click');
  if (!image) return;
  const box = image.getBoundingClientRect();
  trigger('click', {x: (event.clientX - box.left) / box.width, y: (event.clientY - box.top) / box.height});
});
"""
# Sends the index of the clicked example.
ON_EXAMPLE = """
element.addEventListener('click', event => {
  const button = event.target.closest('.il-example');
  if (button) trigger('click', {index: Number(button.dataset.index)});
});
"""
STYLE = Path(__file__).with_name('style.css')
# Sessions whose images are kept in memory, and uploads on disk. The page is meant for one user.
MAX_SESSIONS = 8


def build_page(controller: Controller) -> 'gr.Blocks':
    import gradio as gr

    heads = [ALL_HEADS, *(str(head + 1) for head in range(controller.max_heads()))]
    with gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(60, 60)) as page:
        session = gr.State()
        gr.HTML(f'<header class="il-header"><h1>{TITLE}</h1><p>{INTRODUCTION}</p></header>')
        with gr.Row():
            with gr.Column(scale=5, min_width=320):
                file_input = gr.File(label='Image', height=150, elem_id='il-drop')
                thumbnails = render_examples([to_rgb(image) for image in controller.examples])
                examples = gr.HTML(thumbnails, js_on_load=ON_EXAMPLE, elem_id='il-examples')
                message = gr.HTML(render_message(NO_IMAGE), elem_id='il-message')
                picture = gr.HTML('', js_on_load=ON_CLICK, elem_id='il-picture')
            with gr.Column(scale=7, min_width=320):
                predictions = gr.HTML('', elem_id='il-prediction')
                threshold = gr.Slider(
                    0,
                    1,
                    DEFAULT_SCORE_THR,
                    step=0.05,
                    label='Minimum score of boxes',
                    visible=controller.has_detector,
                    elem_id='il-threshold',
                )
        with gr.Column(visible=False) as attention:
            with gr.Row(elem_id='il-explain'):
                with gr.Column(scale=1):
                    gr.HTML(f'<p class="il-explain">{LEGEND}</p>')
                with gr.Column(scale=0, min_width=190):
                    head = gr.Dropdown(heads, value=ALL_HEADS, label='Heads', elem_id='il-heads')
            layers = gr.HTML('', elem_id='il-layers')
        outputs = [session, message, picture, predictions, layers, attention]

        def to_outputs(update: PageUpdate) -> list[Any]:
            values = (update.state, update.message, update.picture, update.predictions, update.layers)
            visibility = gr.skip() if update.layers is None else gr.update(visible=bool(update.layers))
            return [*(gr.skip() if value is None else value for value in values), visibility]

        def on_upload(path: str, head_name: str, score_thr: float) -> list[Any]:
            try:
                return [None, *to_outputs(controller.upload(Path(path), parse_head(head_name), score_thr))]
            finally:
                # The image is in memory now, or was rejected.
                Path(path).unlink(missing_ok=True)

        def on_example(head_name: str, score_thr: float, event: gr.EventData) -> list[Any]:
            return to_outputs(controller.show_example(int(event.index), parse_head(head_name), score_thr))

        def on_threshold(state: SessionState | None, score_thr: float) -> list[Any]:
            return to_outputs(controller.set_threshold(state, score_thr))

        def on_click(state: SessionState | None, event: gr.EventData) -> list[Any]:
            return to_outputs(controller.click(state, float(event.x), float(event.y)))

        def on_head(state: SessionState | None, head_name: str) -> list[Any]:
            return to_outputs(controller.select_head(state, parse_head(head_name)))

        options: dict[str, Any] = {'api_visibility': 'private', 'show_progress': 'minimal'}
        file_input.upload(on_upload, [file_input, head, threshold], [file_input, *outputs], **options)
        examples.click(on_example, [head, threshold], outputs, **options)
        # While the slider moves, intermediate values are dropped.
        threshold.change(on_threshold, [session, threshold], outputs, trigger_mode='always_last', **options)
        picture.click(on_click, session, outputs, **options)
        head.change(on_head, [session, head], outputs, **options)
    return page


def parse_head(name: str) -> int | None:
    """Return the index of the chosen head; None for all."""
    return None if name == ALL_HEADS else int(name) - 1


@contextmanager
def run_server(controller: Controller, port: int, allowed_hosts: Sequence[str] = ()) -> Iterator[str]:
    """Serve the page until the end of the block; yields its URL.

    Args:
        controller: Handles the events of the page.
        port: Port on 127.0.0.1.
        allowed_hosts: Names under which a proxy offers the page.
    """
    with tempfile.TemporaryDirectory(prefix='inline-serve-') as folder:
        # Gradio reads these when it is imported.
        os.environ.update(GRADIO_ANALYTICS_ENABLED='False', GRADIO_TEMP_DIR=folder, HF_HUB_OFFLINE='1')
        import gradio as gr

        check_port(port)
        refuse_gradio_downloads()
        page = build_page(controller).queue(max_size=MAX_SESSIONS)
        fonts = ('system-ui', 'sans-serif')
        _, url, _ = page.launch(
            server_name=HOST,
            server_port=port,
            share=False,
            allowed_paths=[],
            max_file_size=controller.limits.bytes,
            state_session_capacity=MAX_SESSIONS,
            theme=gr.themes.Default(font=fonts, font_mono=('ui-monospace', 'monospace')),
            css_paths=STYLE,
            footer_links=[],
            ssr_mode=False,
            mcp_server=False,
            quiet=True,
            prevent_thread_lock=True,
            _app=guarded_app(
                allowed_hosts=allowed_hosts,
                max_bytes=controller.limits.bytes,
                uploads=Path(folder),
                max_uploads=MAX_SESSIONS,
            ),
        )
        try:
            yield url
        finally:
            page.close(verbose=False)
            controller.close()


def check_port(port: int) -> None:
    if not 1 <= port <= 65535:
        raise UserError(f'--port {port}: must be from 1 to 65535')
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise UserError(f'--port {port} cannot be used: {error.strerror}') from error
