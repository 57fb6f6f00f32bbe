"""`penstock verify`: whether nodes give what a plan needs: devices, memory, fabric, storage.

Each check reads evidence (`sources`), parses it, and judges it against bounds (`needs`): a finding
passes, warns, fails, is unknown, or is skipped with its reason. The verdict names the cause.
"""
