"""Plans the hardware that a model needs (`plan`), and writes deployment manifests for the plan
(`deploy`).
"""
