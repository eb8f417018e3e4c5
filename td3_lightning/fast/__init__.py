"""Optional faster implementations with the same results; README.md lists what each file gains.

Importing this package registers its update rule. It holds no code that changes what a run computes.
"""

from td3_lightning.algorithm.update_rules import register_update_rule

register_update_rule("td3_lightning.fast.manual_update:make_rule")
