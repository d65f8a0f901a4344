"""How each command of the pages is tried. A new command takes one line in one of the three tables.

Keys are patterns (`*` stands for anything) of a command without its comment and with single spaces. Commands
of blocks below `<!-- needs: … -->` take no line here: their files and flags are checked, but they do not run.
A pattern must not be wider than what its test runs: another flag is another pattern.
"""

SMALL_DATA = (
    '--num-classification-train 40 --num-classification-val 10 --num-scenes-train 8 --num-scenes-val 4'
)

# Run first, for the code of docs/export.md: the files that it opens.
FIRST = (
    'tools/export.py CONFIG CHECKPOINT --size 224 --out model.onnx',
    'tools/export.py CONFIG CHECKPOINT --size 224 --format torch-export --out model.pt2',
)

# Run here, in a copy of the repository whose digits configs train for two steps, with these words added.
# CONFIG and CHECKPOINT are a classifier of one block; tests/docs/belongings.py has the other files.
RUN = {
    'python tools/make_digit_scenes.py': SMALL_DATA,
    'python tools/train.py configs/digits/*': '',
    'python tools/test.py configs/digits/*': '',
    'python tools/analyze.py illustration': '',
    'python tools/analyze.py masking work_dirs/*': '--images 4',
    'python tools/reproduce.py list *': '',
    'python tools/reproduce.py show *': '',
    'python tools/get_flops.py configs/*': '',
    'python tools/predict.py CONFIG CHECKPOINT photos more/photo.jpg --out out': '--overwrite',
    'python tools/predict.py mask-rcnn_* work_dirs/demo/* data/* --out out': '--overwrite',
    'python tools/export.py CONFIG CHECKPOINT --format torch-export --what backbone --size *': (
        '--out backbone.pt2'
    ),
    'python tools/export.py CONFIG CHECKPOINT --format aoti': '--size 224 --out model.aoti.pt2',
    'python -m inline.compat': '',
    'python -m benchmarks.speed': 'memory --repetitions 1',
}

# Started here, with these words added, until they say this, and then stopped by Ctrl-C.
START = {
    'python tools/serve.py CONFIG CHECKPOINT': ('--port {port}', 'open http://127.0.0.1:{port}/'),
    'python tools/serve.py semantic-fpn_* work_dirs/demo/*': (
        '--port {port}',
        'open http://127.0.0.1:{port}/',
    ),
    'tensorboard --logdir work_dirs': ('--port {port}', 'at http://localhost:{port}/'),
}

TOOLS = 'tests/tools/test_tools.py'
ANALYZE = 'tests/tools/test_analyze.py'
ABLATE = 'tests/reproduce/test_ablations.py::test_the_tool_trains_sums_up_and_does_nothing_twice'
SETUP = 'tests/tools/test_setup_env.py::test_torch_comes_first_then_the_pins_then_the_package_then_the_check'

# Run by these tests, with other numbers of steps and other data.
ELSEWHERE: dict[str, tuple[str, ...]] = {
    # Ten minutes as a whole: its data, its trainings and tests, and its report are tried one by one.
    'make demo': (
        'tests/datasets/test_digit_scenes.py::test_the_tool_writes_then_says_that_nothing_is_to_do',
        f'{TOOLS}::test_two_processes_train_and_write_all_logs',
        f'{TOOLS}::test_fine_tuning_starts_from_the_pretrained_weights',
        f'{TOOLS}::test_training_resumes_where_it_stopped',
        'tests/report/test_report.py::test_page_shows_all_numbers_charts_and_images',
    ),
    'make claims': ('tests/reproduce/test_claims.py::test_the_tool_from_probes_to_page',),
    'make setup': (SETUP,),
    'make docs': ('tests/docs/test_site.py::test_the_site_builds_without_a_warning',),
    'make test': ('tests/docs/test_commands.py::test_make_knows_the_targets_of_the_pages',),
    'make format': ('tests/docs/test_commands.py::test_make_knows_the_targets_of_the_pages',),
    'tools/dist_train.sh configs/digits/*': (f'{TOOLS}::test_two_processes_train_and_write_all_logs',),
    'tools/dist_test.sh configs/digits/*': (
        f'{TOOLS}::test_one_process_and_two_measure_what_validation_measured',
    ),
    'python tools/train.py my_config.py': (
        'tests/models/test_contract.py::test_the_mixer_of_the_page_trains_from_a_file_of_its_own',
    ),
    'python tools/train.py CONFIG --resume*': (f'{TOOLS}::test_training_resumes_where_it_stopped',),
    'python tools/train.py CONFIG --cfg-options skip_nonfinite=*': (
        'tests/engine/test_nonfinite.py::test_a_step_that_is_left_out_changes_nothing',
    ),
    'python tools/train.py CONFIG --replay *': (
        'tests/engine/test_nonfinite.py::'
        'test_weights_that_are_not_finite_stop_the_command_and_replay_names_them',
    ),
    'python tools/train.py CONFIG --cfg-options *=*': (
        f'{TOOLS}::test_two_processes_train_and_write_all_logs',
    ),
    'tools/dist_train.sh CONFIG 2 --cfg-options runner_type=inline.ShardedRunner': (
        'tests/engine/test_sharded.py::test_shared_weights_train_alike_in_half_the_memory_and_go_on_anywhere',
    ),
    'python tools/serve.py CONFIG CHECKPOINT --compare CONFIG CHECKPOINT': (
        'tests/serve/test_page.py::test_a_visit',
    ),
    'python tools/export.py CONFIG CHECKPOINT --int8 --evaluate': (
        'tests/tools/test_export.py::test_int8_stands_beside_the_accuracy_of_both',
    ),
    'python tools/export.py configs/digits/inline-pvt-micro_digits.py * --dynamic': (
        'tests/tools/test_export.py::test_a_classifier_runs_in_onnx_runtime_at_any_size',
    ),
    'python tools/export.py CONFIG CHECKPOINT --format onnx --dynamic': (
        'tests/tools/test_export.py::test_a_classifier_runs_in_onnx_runtime_at_any_size',
        'tests/tools/test_export.py::test_a_segmentor_gives_a_score_for_every_pixel',
    ),
    'python tools/publish.py *': ('tests/tools/test_publish.py::test_the_tools_publish_and_test_it',),
    'python tools/convert_checkpoint.py work_dirs/*': (
        'tests/test_safetensors_files.py::test_the_tools_take_it_as_they_take_a_pth',
    ),
    'python benchmarks/soak.py *': (
        'tests/measure/test_soak.py::test_a_short_run_is_sampled_judged_and_drawn',
    ),
    'tools/dist_train.sh CONFIG NPROC': (f'{TOOLS}::test_two_processes_train_and_write_all_logs',),
    'tools/dist_test.sh CONFIG CHECKPOINT NPROC': (
        f'{TOOLS}::test_one_process_and_two_measure_what_validation_measured',
    ),
    'tools/dist_train.sh CONFIG 8': (
        'tests/tools/test_restarts.py::test_two_machines_train_together_and_one_comes_back',
    ),
    'tools/slurm_train.sh PARTITION JOB_NAME CONFIG WORK_DIR': (
        f'{TOOLS}::test_the_slurm_script_asks_for_what_the_environment_says',
        'tests/tools/test_restarts.py::test_a_batch_job_of_slurm_queues_itself_again_and_goes_on',
    ),
    'python tools/train.py configs/ablations/parts/digits/*': (ABLATE,),
    'python tools/analyze.py injectivity *': (
        f'{ANALYZE}::test_injectivity_counts_pairs_of_every_image_layer_and_head',
    ),
    'python tools/analyze.py locality *': (
        f'{ANALYZE}::test_locality_gives_each_layer_its_share_and_its_chance',
    ),
    'python tools/analyze.py masking CONFIG *': (
        f'{ANALYZE}::test_masking_nothing_near_measures_what_test_measures',
    ),
    'python tools/analyze.py maps *': (f'{ANALYZE}::test_maps_show_the_chosen_queries_and_layers',),
    'python tools/ablate.py *': (ABLATE,),
    'python tools/probe.py*': (
        'tests/tools/test_probe.py::test_it_scores_writes_and_goes_on_where_it_stopped',
    ),
    'python tools/reproduce.py run --table digits --train': (
        'tests/tools/test_reproduce.py::test_rows_are_trained_once_tested_and_compared',
    ),
    'python tools/benchmark.py*': (
        'tests/tools/test_benchmark.py::test_a_config_and_a_released_model_are_timed',
    ),
    'python tools/profile_train.py *': (
        'tests/tools/test_benchmark.py::test_the_parts_of_a_training_step_are_listed',
    ),
    'python -m benchmarks.ops *': (
        'tests/benchmarks/test_op_timings.py::test_the_command_writes_a_row_for_each_peer_and_pass',
    ),
}
