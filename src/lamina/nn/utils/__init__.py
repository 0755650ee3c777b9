"""Network utilities, as in torch.nn.utils: `rnn` packs and pads sequences, `clip_grad` clips gradients, `parametrize`
and `parametrizations` compute parameters from others, `fusion` folds norms into the preceding layer."""

from lamina._lazy import lazy
from lamina.nn.utils import fusion, parametrizations, parametrize, rnn
from lamina.nn.utils.clip_grad import clip_grad_norm_, clip_grad_value_, clip_grads_with_norm_, get_total_norm
from lamina.nn.utils.convert_parameters import parameters_to_vector, vector_to_parameters
from lamina.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

__all__ = [
    "clip_grad_norm_",
    "clip_grad_value_",
    "clip_grads_with_norm_",
    "fuse_conv_bn_eval",
    "fuse_linear_bn_eval",
    "fusion",
    "get_total_norm",
    "parameters_to_vector",
    "parametrizations",
    "parametrize",
    "rnn",
    "vector_to_parameters",
]

__getattr__ = lazy(
    __name__,
    {},
    instead={
        "clip_grad_norm": "it is lamina.nn.utils.clip_grad_norm_",
        "prune": "a mask is a buffer that a parametrization multiplies the weight by: "
        "lamina.nn.utils.parametrize.register_parametrization",
        "stateless": "it is lamina.nn.functional_call",
        "weight_norm": "it is lamina.nn.utils.parametrizations.weight_norm, with other names in the state_dict",
        "spectral_norm": "it is lamina.nn.utils.parametrizations.spectral_norm, with other names in the state_dict",
        "remove_weight_norm": 'it is lamina.nn.utils.parametrize.remove_parametrizations(module, "weight")',
        "remove_spectral_norm": 'it is lamina.nn.utils.parametrize.remove_parametrizations(module, "weight")',
    },
)
