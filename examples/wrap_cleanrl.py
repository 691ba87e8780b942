"""PPO in one file, on the reward that an artifact sees: python examples/wrap_cleanrl.py ARTIFACT --env-id FetchReach-v4

The whole algorithm stands here in the order in which it happens; Referee is one line, `RewardModelWrapper`.
"""

import argparse
import time

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.distributions import Normal

from referee import RewardModelWrapper
from referee.envs.gym.env import find_spec


def make_env(env_id: str):
    """One environment that draws, with flat observations and actions within -1..1."""
    env = gym.make(find_spec(env_id), render_mode="rgb_array")
    env = gym.wrappers.FlattenObservation(env)
    return gym.wrappers.RescaleAction(env, -1.0, 1.0)


def layer(inputs: int, outputs: int, scale: float = np.sqrt(2)) -> nn.Linear:
    """A layer that starts orthogonal."""
    made = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(made.weight, scale)
    nn.init.zeros_(made.bias)
    return made


class Agent(nn.Module):
    """A Gaussian policy and a value function, apart from each other."""

    def __init__(self, states: int, actions: int) -> None:
        super().__init__()
        self.critic = nn.Sequential(
            layer(states, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, 1, scale=1.0)
        )  # fmt: skip
        self.mean = nn.Sequential(
            layer(states, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, actions, scale=0.01)
        )  # fmt: skip
        self.log_std = nn.Parameter(torch.zeros(actions))

    def policy(self, states: torch.Tensor) -> Normal:
        mean = self.mean(states)
        return Normal(mean, self.log_std.exp().expand_as(mean))

    def value(self, states: torch.Tensor) -> torch.Tensor:
        return self.critic(states)[..., 0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artifact")
    parser.add_argument("--env-id", default="FetchReach-v4")
    parser.add_argument("--mode", default="per_step", choices=["per_step", "terminal"])
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--rollout", type=int, default=128, help="steps of each environment between updates")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--minibatches", type=int, default=8)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--gamma", type=float, default=0.97)
    parser.add_argument("--gae-lambda", type=float, default=0.95)
    parser.add_argument("--clip", type=float, default=0.2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    envs = gym.vector.SyncVectorEnv([lambda: make_env(args.env_id)] * args.num_envs)
    envs = RewardModelWrapper(envs, args.artifact, mode=args.mode)  # from here on the model is the reward

    agent = Agent(envs.single_observation_space.shape[0], envs.single_action_space.shape[0])
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.lr, eps=1e-5)
    shape = (args.rollout, args.num_envs)
    states = torch.zeros(*shape, *envs.single_observation_space.shape)
    actions = torch.zeros(*shape, *envs.single_action_space.shape)
    log_probs, rewards, values = torch.zeros(shape), torch.zeros(shape), torch.zeros(shape)
    terminations, ends, counted = torch.zeros(shape), torch.zeros(shape), torch.zeros(shape, dtype=torch.bool)

    observation, _ = envs.reset(seed=args.seed)
    resets = np.zeros(args.num_envs, bool)  # the environments that this step resets, instead of acting
    model_success, true_success, started = [], [], time.time()
    for update in range(1, args.steps // (args.rollout * args.num_envs) + 1):
        for t in range(args.rollout):
            states[t] = torch.as_tensor(observation, dtype=torch.float32)
            with torch.no_grad():
                policy = agent.policy(states[t])
                actions[t] = policy.sample()
                log_probs[t], values[t] = policy.log_prob(actions[t]).sum(-1), agent.value(states[t])
            observation, reward, terminated, truncated, info = envs.step(actions[t].clamp(-1, 1).numpy())
            rewards[t], terminations[t] = torch.as_tensor(reward), torch.as_tensor(terminated)
            ends[t], counted[t] = torch.as_tensor(terminated | truncated), torch.as_tensor(~resets)
            resets = terminated | truncated
            model_success += info["referee/success"][resets].tolist()
            truth = info.get("success", info.get("is_success"))
            true_success += [] if truth is None else (truth[resets] > 0).tolist()

        with torch.no_grad():  # advantages: an episode that was cut off goes on in the value of its last state
            last = agent.value(torch.as_tensor(observation, dtype=torch.float32))
            advantages, ahead = torch.zeros(shape), torch.zeros(args.num_envs)
            for t in reversed(range(args.rollout)):
                following = values[t + 1] if t + 1 < args.rollout else last
                delta = rewards[t] + args.gamma * following * (1 - terminations[t]) - values[t]
                ahead = delta + args.gamma * args.gae_lambda * (1 - ends[t]) * ahead
                advantages[t] = ahead
            returns = advantages + values

        rows = counted.reshape(-1).nonzero()[:, 0]  # a step that only resets was no decision
        flat_states, flat_actions = states.flatten(0, 1), actions.flatten(0, 1)
        for _ in range(args.epochs):
            for batch in rows[torch.randperm(len(rows))].chunk(args.minibatches):
                policy = agent.policy(flat_states[batch])
                log_prob = policy.log_prob(flat_actions[batch]).sum(-1)
                ratio = (log_prob - log_probs.reshape(-1)[batch]).exp()
                advantage = advantages.reshape(-1)[batch]
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                clipped = ratio.clamp(1 - args.clip, 1 + args.clip)
                policy_loss = -torch.min(ratio * advantage, clipped * advantage).mean()
                value_loss = (agent.value(flat_states[batch]) - returns.reshape(-1)[batch]).square().mean()
                optimizer.zero_grad()
                (policy_loss + 0.5 * value_loss).backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()

        model, true = (np.mean(each[-100:]) if each else float("nan") for each in (model_success, true_success))
        steps = update * args.rollout * args.num_envs
        print(
            f"{steps:,} steps, {steps / (time.time() - started):.0f} per second: of the last 100 episodes the model "
            f"calls {model:.0%} a success, {true:.0%} are",
            flush=True,
        )
    envs.close()


if __name__ == "__main__":
    main()
