"""A trainer of one's own: GRPO in torch on turnloom's arrays, on a CPU, in about a minute.

    pip install "turnloom[demo]"
    python examples/own_trainer.py [--steps 60] [--seed 0]

The servers are those of `turnloom demo`: an agent that speaks NeMo Gym's `/run`, and a policy server that samples for
real and takes new weights. All else is here: the rollouts, the advantages, the loss, the step.
"""

import argparse
import asyncio
import os
import statistics
from collections.abc import Sequence

import torch

import turnloom
from turnloom.demo import task
from turnloom.demo.model import make_model, make_tokenizer, warm_start
from turnloom.demo.servers import Servers
from turnloom.demo.weights import WeightsOverHttp

ROWS_PER_STEP = 8
GROUP_SIZE = 16
CLIP = 0.2


async def roll_out(agent_url: str, rows: Sequence[dict]) -> list[list[turnloom.Rollout]]:
    """A group of rollouts for each row. None of them raises: what goes wrong is an outcome."""
    async with turnloom.GymClient({task.AGENT: agent_url}, run_timeout=60.0, fork_threshold_tokens=0) as gym:
        runs = [gym.run(row, max_tokens=6, temperature=1.0, top_p=1.0) for row in rows for _ in range(GROUP_SIZE)]
        rollouts = await asyncio.gather(*runs)
    return [rollouts[start : start + GROUP_SIZE] for start in range(0, len(rollouts), GROUP_SIZE)]


def advantages_of(group: Sequence[turnloom.Rollout]) -> dict[str, float]:
    """What each rollout that is `ok` earned more than the others; a failed one is in no mean."""
    rewards = {rollout.id: rollout.reward for rollout in group if rollout.outcome == "ok"}
    if len(rewards) < 2:
        return {}  # nothing to compare with
    mean, spread = statistics.fmean(rewards.values()), statistics.pstdev(rewards.values())
    return {name: (reward - mean) / (spread + 1e-6) for name, reward in rewards.items()}


def grpo_loss(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """The clipped policy gradient, over the trained tokens alone. All tensors are [B, L]."""
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1]
    # What stands at a place was predicted at the one before it.
    ids, trained = batch["input_ids"][:, 1:], batch["completion_mask"][:, 1:]
    old_log_probs, advantages = batch["old_log_probs"][:, 1:], batch["values"][:, 1:]
    log_probs = torch.log_softmax(logits, dim=-1).gather(2, ids[..., None])[..., 0]
    ratio = torch.exp(log_probs - old_log_probs)
    gain = torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
    return -(gain * trained).sum() / trained.sum()


def train(*, steps: int, seed: int) -> list[float]:
    """The mean reward of each step."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the servers' process: so small a model gains nothing by more
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model, tokenizer, rows = make_model(seed), make_tokenizer(), task.gym_rows(seed)
    warm_start(model, tokenizer, seed=seed)  # a policy that has seen conversations, and knows nothing of the task
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    means = []
    with Servers(seed=seed) as servers:
        servers.wait_until_ready()
        weights = WeightsOverHttp(servers.policy_url)
        for step in range(steps):
            weights.post(dict(model.named_parameters()))
            chosen = [rows[(step * ROWS_PER_STEP + number) % len(rows)] for number in range(ROWS_PER_STEP)]
            groups = asyncio.run(roll_out(servers.agent_url, chosen))

            advantages = {}
            for group in groups:
                advantages |= advantages_of(group)
            training_rows = [
                row for group in groups for rollout in group for row in rollout.rows if rollout.id in advantages
            ]
            batch = turnloom.pad(
                training_rows,
                pad_token_id=tokenizer.pad_token_id,
                values=turnloom.spread(advantages, training_rows),
                vocab_size=len(tokenizer),
            )
            loss = grpo_loss(model, batch.to_torch())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

            rewards = [rollout.reward for group in groups for rollout in group if rollout.outcome == "ok"]
            means.append(statistics.fmean(rewards))
            print(f"step {step + 1:3d}  reward {means[-1]:.3f}  rows {len(training_rows)}  loss {loss.item():+.4f}")
    return means


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    train(steps=arguments.steps, seed=arguments.seed)
