"""Optional faster implementations with the same results; README.md lists what each file gains.

Importing this package registers its update rules under the values of `model.gradients`.
"""

from td3_lightning.algorithm.update_rules import register_update_rule

register_update_rule("autograd", "td3_lightning.fast.autograd_update:make_rule")
register_update_rule("manual", "td3_lightning.fast.manual_update:make_rule")
register_update_rule("compiled", "td3_lightning.fast.compiled_update:make_rule")
