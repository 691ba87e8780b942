"""The embedded MuJoCo Panda: model, batched kinematics, batched stepping and cameras."""
