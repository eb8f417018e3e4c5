"""Check that TensorBoard shows the configuration and the hyperparameters with final metrics."""

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2

from td3_lightning.cli.app import main
from td3_lightning.reporting.tensorboard_summary import flatten


def test_nested_settings_are_flattened() -> None:
    settings = {"model": {"tau": 0.1, "encoder": None, "dims": [8, 8]}, "wrappers": [{"class_path": "a.B"}], "on": True}
    assert dict(flatten(settings)) == {
        "model.tau": 0.1,
        "model.dims": "[8, 8]",
        "wrappers.0.class_path": "a.B",
        "on": True,
    }


def test_run_writes_its_configuration_and_hyperparameters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    small = ["--data.steps_per_epoch=4", "--data.batch_size=4", "--data.eval_episodes=1", "--model.hidden_dims=[8]"]
    small += ["--collector.warmup_steps=10", "--trainer.max_epochs=1", "--trainer.enable_progress_bar=false"]
    assert main(["fit", "--data.env_id=Pendulum-v1", "--model.tau=0.25", *small]) == 0
    events = EventAccumulator("lightning_logs/default/version_0").Reload()
    (text,) = events.Tensors("config/text_summary")
    assert "      tau: 0.25" in text.tensor_proto.string_val[0].decode()
    content = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    values = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams
    assert values["model.tau"].number_value == 0.25
    assert values["data.env_id"].string_value == "Pendulum-v1"
    experiment = events.summary_metadata["_hparams_/experiment"].plugin_data.content
    infos = plugin_data_pb2.HParamsPluginData.FromString(experiment).experiment.metric_infos
    assert [info.name.tag for info in infos] == ["eval/return_mean", "eval/return_std", "eval/length_mean"]
