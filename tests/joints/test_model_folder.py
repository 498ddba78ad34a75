"""A model folder is planned as the published model of the same dimensions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import trainworks
from trainworks.config.run_file import RunFile


@pytest.mark.parametrize(
    ("preset", "config"),
    [
        (
            "vit-b16",
            {"model_type": "vit", "num_channels": 3, "patch_size": 16, "hidden_size": 768, "intermediate_size": 3072},
        ),
        ("resnet-50", {"model_type": "resnet", "depths": [3, 4, 6, 3], "hidden_sizes": [256, 512, 1024, 2048]}),
    ],
)
def test_a_model_of_images_in_a_folder_is_planned_as_the_preset_is(
    tmp_path: Path, preset: str, config: dict[str, object]
) -> None:
    layers = {"num_hidden_layers": 12, "num_attention_heads": 12} if preset == "vit-b16" else {}
    (tmp_path / "config.json").write_text(json.dumps(config | layers), encoding="utf-8")
    plans = [
        trainworks.plan(
            RunFile.model_validate(
                {
                    "name": "images",
                    "workload": {
                        "task": "image-classification",
                        "model": model,
                        "data": {"image_size": 384},
                        "precision": "bf16",
                        "global_batch": 1024,
                        "train_for": "100 steps",
                    },
                    "cluster": "8x H100",
                }
            ),
            without_learning=True,
        )
        for model in ({"preset": preset}, {"hf": str(tmp_path)})
    ]
    assert plans[0].best[0].step_time_s == pytest.approx(plans[1].best[0].step_time_s)
