"""Entry point of the command ``inline``.

Imports nothing but the module of the chosen subcommand, so that ``inline --help`` is fast and works without
OpenMMLab. ``python -m inline.commands.main`` is the same command, for launchers such as torchrun.
"""

import difflib
import sys
from dataclasses import dataclass
from importlib import import_module

from inline import __version__
from inline.utils.errors import UserError, exit_on_user_error
from inline.utils.extras import require_extras


@dataclass(frozen=True)
class Command:
    """A subcommand.

    Args:
        module: Module of this package with a function ``main``.
        summary: One line for ``inline --help``.
        extras: Extras of the distribution that the module needs.
    """

    module: str
    summary: str
    extras: tuple[str, ...] = ('openmmlab',)


COMMANDS = {
    'train': Command('train', 'train the model of a config'),
    'test': Command('test', 'test a checkpoint with the data and evaluators of a config'),
    'predict': Command('predict', 'run a trained model on images; write annotated images and JSON'),
    'export': Command('export', 'export a trained model: ONNX, OpenVINO, torch.export, AOTInductor'),
    'serve': Command('serve', 'try a model in a browser', ('openmmlab', 'serve')),
    'convert': Command('convert', 'convert a checkpoint of another project, or reduce ours to weights', ()),
    'publish': Command('publish', 'write the weights of a checkpoint with a model card', ()),
    'linearize': Command('linearize', 'turn a trained softmax model into an InLine model'),
    'prepare-data': Command('prepare_data', 'check a public dataset and link it for the configs'),
    'reproduce': Command('reproduce', "list, show and measure rows of the paper's tables"),
    'ablate': Command('ablate', 'train the rows of an ablation and summarise them'),
    'analyze': Command('analyze', 'measure injectivity and locality; draw attention maps'),
    'benchmark': Command('benchmark', 'measure latency, throughput and memory', ()),
    'flops': Command('flops', "count the parameters and multiply-adds of a config's model"),
    'doctor': Command('doctor', 'check the installation: versions, operators, GPU, extras', ()),
}


def main() -> None:
    """Run the subcommand given by the first argument."""
    with exit_on_user_error():
        name = sys.argv[1] if len(sys.argv) > 1 else ''
        if name in ('-h', '--help'):
            print(format_help())
            return
        if name in ('-V', '--version'):
            print(f'inline {__version__}')
            return
        if name not in COMMANDS:
            raise UserError(_describe_unknown(name))
        # The subcommand's parser shows the first word in its usage; messages repeat the words.
        sys.argv = [f'inline {name}', *sys.argv[2:]]
    run(name)


def run(name: str) -> None:
    """Run a subcommand with the arguments in ``sys.argv``. ``tools/*.py`` call this."""
    with exit_on_user_error():
        command = COMMANDS[name]
        require_extras(f'inline {name}', *command.extras)
        code = import_module(f'inline.commands.{command.module}').main()
        if code:
            sys.exit(code)


def format_help() -> str:
    """Return the text of ``inline --help``."""
    width = max(map(len, COMMANDS))
    lines = [f'  {name:<{width}}  {command.summary}' for name, command in COMMANDS.items()]
    return '\n'.join(
        [
            'usage: inline COMMAND [arguments]',
            '',
            'Vision backbones with injective linear attention: train, test, use and export them.',
            '',
            'commands:',
            *lines,
            '',
            'inline COMMAND --help describes the arguments of a command.',
            'inline --version prints the version.',
        ]
    )


def _describe_unknown(name: str) -> str:
    if not name:
        return f'a command is required: {", ".join(COMMANDS)}; see inline --help'
    close = difflib.get_close_matches(name, COMMANDS, n=1)
    advice = f'did you mean {close[0]}?' if close else f'choose from {", ".join(COMMANDS)}'
    return f'unknown command {name!r}: {advice}'


if __name__ == '__main__':
    main()
