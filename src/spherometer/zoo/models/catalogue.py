"""The architectures by name, each with the number of parameters of its default form (PAPERS section 4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import nn

from spherometer.zoo.models.convolutional import all_cnn, cnn6, digits_cnn, lenet, simple_cnn
from spherometer.zoo.models.coordinate import coordinate_network
from spherometer.zoo.models.dense import bottleneck_perceptron, dense
from spherometer.zoo.models.preactivation import preact_resnet18, preresnet, wide_resnet
from spherometer.zoo.models.resnet import cifar_resnet, resnet18
from spherometer.zoo.models.vgg import vgg


@dataclass(frozen=True)
class Architecture:
    """A name, what builds it, how many parameters that gives, and where it is from."""

    name: str
    build: Callable[..., nn.Module]
    num_parameters: int
    source: str


_DIGITS = (1, 8, 8)
_CIFAR = (3, 32, 32)

_ENTRIES = (
    Architecture(
        "digits-linear", partial(dense, input_shape=_DIGITS, depth=1), 650, "softmax regression on the digits"
    ),
    Architecture(
        "digits-mlp", partial(dense, input_shape=_DIGITS, width=64, activation="tanh"), 8_970, "64-64-64-10, tanh"
    ),
    Architecture("digits-cnn", digits_cnn, 9_930, "two convolutions and a linear layer on the digits"),
    Architecture(
        "digits-resnet8", partial(cifar_resnet, input_shape=_DIGITS, depth=8, width=8), 19_074, "a narrow ResNet-8"
    ),
    Architecture("softmax-regression", partial(dense, depth=1), 7_850, "D: 784-10"),
    Architecture("mlp-100", partial(dense, width=100, depth=2), 79_510, "D: 784-100-10"),
    Architecture("mlp-10-100", bottleneck_perceptron, 9_960, "D-e9: 784-10-100-10"),
    Architecture(
        "mlp4", partial(dense, width=256, depth=4), 335_114, "B: four layers; width not in the text, ours 256"
    ),
    Architecture("fcn3-mnist", dense, 199_210, "C: 784-200-200-10"),
    Architecture("fcn3-cifar", partial(dense, input_shape=_CIFAR), 656_810, "C, A C.2: 3072-200-200-10"),
    Architecture(
        "deep-linear",
        partial(dense, num_classes=1, input_shape=(1,), width=1, activation="identity", bias=False),
        3,
        "D: w1 w2 w3 X",
    ),
    Architecture("coordinate-gaussian", coordinate_network, 132_353, "A C.3, high-frequency start"),
    Architecture(
        "coordinate-gaussian-low", partial(coordinate_network, frequency="low"), 132_353, "A C.3, low-frequency start"
    ),
    Architecture(
        "coordinate-relu", partial(coordinate_network, activation="relu"), 132_353, "A C.3, low-frequency start"
    ),
    Architecture("cnn6", cnn6, 511_926, "C: 6CNN"),
    Architecture("simple-cnn", simple_cnn, 361_706, "C: SimpleCNN"),
    Architecture("lenet", lenet, 62_006, "B: LeNet"),
    Architecture("all-cnn-c", all_cnn, 1_387_108, "D: All-CNN-C, 100 classes"),
    Architecture("vgg11", vgg, 9_750_922, "A, B, C: VGG-11 without norm"),
    Architecture("vgg11-bn", partial(vgg, batchnorm=True), 9_756_426, "A: VGG-11 with batch norm"),
    Architecture("vgg16", partial(vgg, depth=16), 15_245_130, "VGG-16 without norm"),
    Architecture("vgg16-bn", partial(vgg, depth=16, batchnorm=True), 15_253_578, "D: VGG-16 with batch norm"),
    Architecture("resnet20", cifar_resnet, 269_722, "ResNet-20, option-A shortcuts"),
    Architecture("resnet20-plain", partial(cifar_resnet, batchnorm=False), 268_346, "C: ResNet-20 without norm"),
    Architecture("resnet18", resnet18, 11_173_962, "A: ResNet-18 for small images"),
    Architecture("resnet18-plain", partial(resnet18, batchnorm=False), 11_164_362, "A: ResNet-18 without norm"),
    Architecture("preact-resnet18", preact_resnet18, 11_171_146, "C: PreAct ResNet-18"),
    Architecture("preresnet164", preresnet, 1_726_388, "D: PreResNet-164, 100 classes"),
    Architecture("wrn-16-1", partial(wide_resnet, depth=16, width=1), 175_066, "a small Wide ResNet"),
    Architecture("wrn-28-2", partial(wide_resnet, width=2), 1_467_610, "C: WRN-28-2"),
    Architecture("wrn-28-10", wide_resnet, 36_479_194, "C: WRN-28-10"),
    Architecture("wrn-34-10", partial(wide_resnet, depth=34), 46_160_474, "C: WRN-34-10"),
    Architecture(
        "wrn-28-10-bias",
        partial(wide_resnet, num_classes=100, bias=True),
        36_546_980,
        "D: WRN-28x10 with biases, 100 classes",
    ),
)

ARCHITECTURES: dict[str, Architecture] = {entry.name: entry for entry in _ENTRIES}
