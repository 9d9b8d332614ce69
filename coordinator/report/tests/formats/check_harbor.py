"""Reads exported trajectories, trials and jobs with Harbor's own models, and says what it finds."""

import json
import sys
from pathlib import Path

if sys.version_info < (3, 12):
    # Harbor asks for a newer Python, and needs of it what this package has as well.
    import typing

    import typing_extensions

    typing.TypedDict = typing_extensions.TypedDict
    typing.override = typing_extensions.override

from harbor.models.job.config import JobConfig
from harbor.models.job.result import JobResult, JobStats
from harbor.models.trajectories import Trajectory
from harbor.models.trial.config import TrialConfig
from harbor.models.trial.result import TrialResult
from harbor.utils.trajectory_utils import load_model_usage_from_trajectory
from harbor.utils.trajectory_validator import TrajectoryValidator
from PIL import Image

root = Path(sys.argv[1])


def trajectory(path):
    validator = TrajectoryValidator()
    valid = validator.validate(path)
    assert valid, (path, validator.get_errors())
    read = Trajectory.model_validate_json(path.read_text())
    assert read.has_multimodal_content() or not (path.parent / "images").exists()
    # Nothing of the file is unknown to the model.
    dumped = read.to_json_dict()
    assert dumped == json.loads(path.read_text()), path
    for image in path.parent.glob("images/*"):
        Image.open(image).verify()
    usage = load_model_usage_from_trajectory(path)
    return {
        "path": str(path.relative_to(root)),
        "version": read.schema_version,
        "sources": [step.source for step in read.steps],
        "first_text": read.steps[0].message[0].text,
        "calls": [[call.arguments for call in step.tool_calls or []] for step in read.steps],
        "results": [
            [result["content"] for result in step.get("observation", {}).get("results", [])] for step in dumped["steps"]
        ],
        "inferences": [step.llm_call_count for step in read.steps],
        "cost": read.final_metrics.total_cost_usd,
        "usage": {model: of.model_dump() for model, of in (usage or {}).items()},
        "prompt_tokens": read.final_metrics.total_prompt_tokens,
    }


def unordered(value):
    """The same with every list of names in one order."""
    if isinstance(value, dict):
        return {key: unordered(of) for key, of in value.items()}
    return sorted(value) if isinstance(value, list) else value


def job(folder):
    config = JobConfig.model_validate_json((folder / "config.json").read_text())
    result = JobResult.model_validate_json((folder / "result.json").read_text())
    assert config.job_name == folder.name
    trials = []
    for place in sorted(path for path in folder.iterdir() if path.is_dir()):
        assert TrialConfig.model_validate_json((place / "config.json").read_text()).trial_name == place.name
        if (place / "result.json").exists():
            trials.append(TrialResult.model_validate_json((place / "result.json").read_text()))
            assert trials[-1].trial_name == place.name
    # Harbor's own count of these trials is ours.
    counted = JobStats.from_trial_results(
        trials, n_total_trials=result.n_total_trials, n_running_trials=result.stats.n_running_trials
    )
    ours, theirs = unordered(result.stats.model_dump()), unordered(counted.model_dump())
    assert abs((ours.pop("cost_usd") or 0) - (theirs.pop("cost_usd") or 0)) < 1e-9
    assert ours == theirs, (ours, theirs)
    return {
        "trials": {
            trial.trial_name: {
                "task": trial.task_name,
                "rewards": trial.verifier_result.rewards if trial.verifier_result else None,
                "valid": trial.reward_valid,
                "exception": trial.exception_info.exception_type if trial.exception_info else None,
                "model": trial.agent_info.model_info.name if trial.agent_info.model_info else None,
                "input": trial.agent_result.n_input_tokens,
                "set_up": trial.environment_setup is not None,
            }
            for trial in trials
        },
        "total": result.n_total_trials,
        "running": result.stats.n_running_trials,
        "errored": result.stats.n_errored_trials,
    }


json.dump(
    {
        "trajectories": [trajectory(path) for path in sorted(root.rglob("trajectory.json"))],
        "jobs": {folder.name: job(folder) for folder in root.iterdir() if (folder / "config.json").exists()},
    },
    sys.stdout,
)
