"""How the tests run every command of the documentation. Add new commands to one of the three tables.

Keys are patterns (`*` matches anything) for a command without its comment and with single spaces. Commands in
blocks below `<!-- needs: … -->` are not listed: their files and flags are checked, but they are not run.
A pattern must not be wider than what its test runs: another flag needs another pattern.
"""

SMALL_DATA = (
    '--num-classification-train 40 --num-classification-val 10 --num-scenes-train 8 --num-scenes-val 4'
)

# Run first: they write the files that the code in docs/export.md opens.
FIRST = (
    'tools/export.py CONFIG CHECKPOINT --size 224 --out model.onnx',
    'tools/export.py CONFIG CHECKPOINT --size 224 --format torch-export --out model.pt2',
)

# Run with these additional arguments, in a copy of the repository whose digits configs train for two steps.
# CONFIG and CHECKPOINT are a classifier with one block; tests/docs/page_files.py writes the other files.
RUN = {
    'python tools/make_digit_scenes.py': SMALL_DATA,
    'python tools/train.py configs/digits/*': '',
    'python tools/test.py configs/digits/*': '',
    'python tools/analyze.py illustration': '',
    'python tools/analyze.py masking work_dirs/*': '--images 4',
    'python tools/reproduce.py list *': '',
    'python tools/reproduce.py show *': '',
    'python tools/get_flops.py configs/*': '',
    'inline doctor': '',
    'inline flops inline-pvt-tiny_*': '',
    'python tools/predict.py CONFIG CHECKPOINT photos more/photo.jpg --out out': '--overwrite',
    'python tools/predict.py mask-rcnn_* work_dirs/demo/* data/* --out out': '--overwrite',
    'python tools/export.py CONFIG CHECKPOINT --format torch-export --what backbone --size *': (
        '--out backbone.pt2'
    ),
    'python -m benchmarks.reads': '--images 20 --rounds 1',
}

# Started with these additional arguments until they print this, then stopped with Ctrl-C.
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
ABLATE = 'tests/reproduce/test_claims.py::test_tools_train_analyze_and_judge_without_repeating_runs'
SETUP = 'tests/tools/test_setup_env.py::test_steps_run_in_the_order_that_compiling_mmcv_needs'

# Covered by these tests, with other numbers of steps and other data.
ELSEWHERE: dict[str, tuple[str, ...]] = {
    # Takes ten minutes; its data, runs, tests and report are tested separately.
    'make demo': (
        'tests/datasets/digits/test_digit_scenes.py::test_the_tool_writes_once',
        f'{TOOLS}::test_two_processes_train_and_write_all_logs',
        f'{TOOLS}::test_fine_tuning_starts_from_the_pretrained_weights',
        f'{TOOLS}::test_training_resumes_where_it_stopped',
        'tests/reproduce/report/test_report.py::test_page_shows_all_numbers_charts_and_images',
    ),
    'make claims': (
        'tests/reproduce/test_claims.py::test_tools_train_analyze_and_judge_without_repeating_runs',
    ),
    'make setup': (SETUP,),
    'make docs': ('tests/docs/test_site.py::test_site_builds_without_warnings',),
    'make test': ('tests/docs/test_commands.py::test_documented_make_targets_exist',),
    'make exhaustive': ('tests/docs/test_commands.py::test_documented_make_targets_exist',),
    'make quick': ('tests/docs/test_commands.py::test_documented_make_targets_exist',),
    'make format': ('tests/docs/test_commands.py::test_documented_make_targets_exist',),
    'tools/dist_train.sh configs/digits/*': (f'{TOOLS}::test_two_processes_train_and_write_all_logs',),
    'tools/dist_test.sh configs/digits/*': (
        f'{TOOLS}::test_one_and_two_processes_measure_the_validation_accuracy',
    ),
    'python tools/train.py my_config.py': (
        'tests/models/test_contract.py::test_documented_mixer_trains_from_a_separate_file',
    ),
    'python tools/train.py CONFIG --resume*': (f'{TOOLS}::test_training_resumes_where_it_stopped',),
    'python tools/train.py CONFIG --cfg-options skip_nonfinite=*': (
        'tests/engine/hooks/test_nonfinite.py::test_skipped_step_changes_nothing',
    ),
    'python tools/train.py CONFIG --replay *': (
        'tests/engine/hooks/test_nonfinite.py::test_replay_names_non_finite_weights',
    ),
    'python tools/train.py CONFIG --epochs 2 --batch-size 20 --workers 0 --lr 1e-3 --seed 3': (
        'tests/engine/hooks/test_summary.py::test_one_screen_before_the_first_step',
    ),
    'python tools/train.py CONFIG --cfg-options *=*': (
        f'{TOOLS}::test_two_processes_train_and_write_all_logs',
    ),
    'tools/dist_train.sh CONFIG 2 --cfg-options runner_type=inline.ShardedRunner': (
        'tests/engine/distributed/test_sharded.py::test_sharded_training_gives_equal_losses_with_half_the_memory',
    ),
    'python tools/serve.py CONFIG CHECKPOINT --compare CONFIG CHECKPOINT': (
        'tests/apis/serve/test_page.py::test_requests_of_other_programs_are_rejected',
        'tests/apis/serve/test_page.py::test_page_in_a_browser',
    ),
    'python tools/export.py CONFIG CHECKPOINT --format aoti': (
        'tests/apis/export/test_formats.py::test_complete_models_agree',
    ),
    'python tools/export.py CONFIG CHECKPOINT --format openvino --precision bf16': (
        'tests/apis/export/test_openvino.py::test_bf16_differs_from_fp32_within_its_precision',
    ),
    'python tools/export.py CONFIG CHECKPOINT --format openvino --int8': (
        'tests/apis/export/test_openvino.py::test_files_agree_and_int8_is_close',
        'tests/tools/test_export.py::test_int8_reports_the_accuracy_of_model_and_file',
    ),
    'python tools/predict.py CONFIG model.onnx photos --out out': (
        'tests/apis/test_runtimes.py::test_classifier_files_predict_as_pytorch_does',
    ),
    'inline benchmark --runtimes*': (
        'tests/benchmark/test_runtime_speed.py::test_process_measures_and_failures_become_notes',
        'tests/benchmark/test_runtime_speed.py::test_table_and_figure_show_the_newest_rows',
    ),
    'python tools/export.py configs/digits/inline-pvt-micro_digits.py * --dynamic': (
        'tests/tools/test_export.py::test_classifier_runs_in_onnx_runtime_at_any_size',
    ),
    'python tools/export.py configs/digits/mask-rcnn_inline-pvt-micro_digits.py * --dynamic': (
        'tests/apis/export/test_detectors.py::test_file_agrees_in_onnx_runtime_and_openvino',
    ),
    'python tools/export.py CONFIG CHECKPOINT --format onnx --dynamic': (
        'tests/tools/test_export.py::test_classifier_runs_in_onnx_runtime_at_any_size',
        'tests/tools/test_export.py::test_segmentor_returns_logits_per_pixel',
    ),
    'python -m tests.checkpoints.fuzz_unpickling --mutants *': (
        'tests/checkpoints/test_fuzz_unpickling.py::test_hostile_files_are_data_or_one_line',
    ),
    'python tools/publish.py *': ('tests/tools/test_publish.py::test_the_tools_publish_and_test',),
    'python tools/convert_checkpoint.py work_dirs/*': (
        'tests/checkpoints/test_safetensors_format.py::test_the_tools_accept_it_like_a_pth',
    ),
    'python benchmarks/soak.py *': (
        'tests/benchmark/test_soak.py::test_short_run_is_sampled_judged_and_plotted',
    ),
    'tools/dist_train.sh CONFIG NPROC': (f'{TOOLS}::test_two_processes_train_and_write_all_logs',),
    'tools/dist_test.sh CONFIG CHECKPOINT NPROC': (
        f'{TOOLS}::test_one_and_two_processes_measure_the_validation_accuracy',
    ),
    'tools/dist_train.sh CONFIG 8': (
        'tests/tools/test_restarts.py::test_run_survives_a_killed_worker_and_saves_when_it_is_stopped',
    ),
    'tools/slurm_train.sh PARTITION JOB_NAME CONFIG WORK_DIR': (
        f'{TOOLS}::test_slurm_script_requests_the_resources_of_the_environment',
        'tests/slurm/test_slurm_jobs.py::test_two_nodes',
        'tests/slurm/test_slurm_jobs.py::test_time_limit_then_cancel',
    ),
    'python tools/train.py configs/ablations/components/digits/*': (ABLATE,),
    'python tools/analyze.py injectivity *': (
        f'{ANALYZE}::test_injectivity_counts_pairs_per_image_layer_and_head',
    ),
    'python tools/analyze.py locality *': (f'{ANALYZE}::test_locality_reports_share_and_chance_per_layer',),
    'python tools/analyze.py masking CONFIG *': (
        f'{ANALYZE}::test_unmasked_accuracy_equals_that_of_the_test_tool',
    ),
    'python tools/analyze.py maps *': (f'{ANALYZE}::test_maps_contain_the_chosen_queries_and_layers',),
    'python tools/ablate.py *': (ABLATE,),
    'python tools/probe.py*': ('tests/tools/test_probe.py::test_interrupted_run_continues',),
    'python tools/reproduce.py run --table digits --train': (
        'tests/tools/test_reproduce.py::test_rows_are_trained_once_tested_and_compared',
    ),
    'python tools/benchmark.py*': (
        'tests/tools/test_benchmark.py::test_config_and_released_model_are_timed',
    ),
    'python tools/profile_train.py *': (
        'tests/tools/test_benchmark.py::test_phases_of_a_training_step_are_listed',
    ),
    'python tools/train.py configs/digits_quick/*inline-pvt-nano_digits.py --cfg-options compile=True': (
        'tests/engine/test_compile_training.py::test_training_with_a_compiled_backbone_has_the_same_losses',
    ),
    'python -m benchmarks.compile *': (
        'tests/benchmarks/test_compile_benchmark.py::test_a_row_has_time_agreement_and_recompilations',
        'tests/benchmarks/test_compile_benchmark.py::test_rows_of_a_file_are_replaced_in_order',
    ),
    'python -m benchmarks.openvino_profile *': (
        'tests/benchmarks/test_openvino_profile.py::test_a_profile_replaces_the_earlier_one',
    ),
    'python -m benchmarks.speed': (
        'tests/benchmarks/test_speed.py::test_training_step_uses_less_memory_than_the_plain_formulation',
    ),
    'python -m benchmarks.ops *': (
        'tests/benchmarks/test_op_timings.py::test_command_writes_a_row_per_peer_and_pass',
    ),
}
