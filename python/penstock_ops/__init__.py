"""Plans how much hardware a model needs (`plan`), and writes deployment manifests for such plans
(`deploy`).
"""
