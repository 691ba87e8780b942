"""Tasks of ManiSkill 3 under the vector-env contract: in processes on the CPU, or in one batch on a GPU."""
