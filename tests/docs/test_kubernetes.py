"""The Kubernetes manifest of the documentation: its schema, exit codes and command. No cluster runs it."""

import subprocess
from typing import Any

import pytest
import yaml
from kubeflow_trainer_api.models import TrainerV1alpha1TrainingRuntime, TrainerV1alpha1TrainJob

from inline.engine.signals import EXIT_PREEMPTED
from tests.conftest import ROOT

MODELS = {'TrainingRuntime': TrainerV1alpha1TrainingRuntime, 'TrainJob': TrainerV1alpha1TrainJob}


@pytest.fixture(scope='module')
def manifests() -> dict[str, dict[str, Any]]:
    documents = yaml.safe_load_all((ROOT / 'docs' / 'examples' / 'kubernetes.yaml').read_text())
    return {document['kind']: document for document in documents}


@pytest.mark.parametrize('kind', MODELS)
def test_manifest_follows_the_published_schema(kind: str, manifests: dict[str, dict[str, Any]]) -> None:
    """The models ignore keys that they do not know, so nothing may be missing from their own output."""
    manifest = manifests[kind]
    assert MODELS[kind].from_dict(manifest).to_dict() == manifest
    assert manifest['apiVersion'] == 'trainer.kubeflow.org/v1alpha1'


def test_exit_codes_decide_about_a_restart(manifests: dict[str, dict[str, Any]]) -> None:
    (job,) = manifests['TrainingRuntime']['spec']['template']['spec']['replicatedJobs']
    spec = job['template']['spec']
    actions = {
        code: rule['action']
        for rule in spec['podFailurePolicy']['rules']
        for code in rule.get('onExitCodes', {}).get('values', ())
    }
    assert actions == {2: 'FailJob', EXIT_PREEMPTED: 'Ignore'}
    pod = spec['template']['spec']
    assert pod['restartPolicy'] == 'Never'
    (container,) = pod['containers']
    # The names that Kubeflow Trainer looks for.
    assert (job['name'], container['name']) == ('node', 'node')
    trainer = manifests['TrainJob']['spec']['trainer']
    (grace,) = [int(entry['value']) for entry in trainer['env'] if entry['name'] == 'GRACE_SECONDS']
    assert pod['terminationGracePeriodSeconds'] > grace
    mounted = {mount['name'] for mount in container['volumeMounts']}
    assert mounted == {volume['name'] for volume in pod['volumes']}
    assert (
        manifests['TrainJob']['spec']['runtimeRef']['name']
        == manifests['TrainingRuntime']['metadata']['name']
    )


def test_command_starts_the_launcher_of_every_node(manifests: dict[str, dict[str, Any]]) -> None:
    trainer = manifests['TrainJob']['spec']['trainer']
    variables = {'NNODES': '2', 'NODE_RANK': '1', 'MASTER_ADDR': 'node-0.example', 'MASTER_PORT': '29400'}
    done = subprocess.run(
        trainer['command'],
        cwd=ROOT,
        env={f'PET_{name}': value for name, value in variables.items()}
        | {'PYTHON': 'echo', 'PATH': '/usr/bin:/bin'},
        capture_output=True,
        text=True,
        check=True,
    )
    assert '--nnodes 2 --nproc_per_node 8 ' in done.stdout
    assert '--rdzv_endpoint node-0.example:29400 ' in done.stdout
    assert 'is_host=0' in done.stdout
    assert done.stdout.rstrip().endswith(' --resume')
    assert trainer['numProcPerNode'] == trainer['resourcesPerNode']['limits']['nvidia.com/gpu'] == 8
