"""NeMo Gym for trainers: its datasets here, its rollouts in `turnloom.integrations.nemo_gym.rollout`."""

from turnloom.integrations.nemo_gym.dataset import load_dataset

__all__ = ["load_dataset"]
