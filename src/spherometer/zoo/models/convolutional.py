"""Small convolutional networks: 6CNN and SimpleCNN of C, LeNet of B, All-CNN-C of D, and one for the digits."""

from __future__ import annotations

from torch import Tensor, nn

from spherometer.zoo.models.parts import InputShape, check_image_shape, check_sizes, flat_size, make_activation


def cnn6(
    *,
    num_classes: int = 10,
    input_shape: InputShape = (3, 32, 32),
    width: int = 32,
    activation: str = "relu",
    bias: bool = False,
) -> nn.Sequential:
    """Four convolutions and two linear layers, no pooling; `bias` is that of the convolutions.  6CNN of C, 511,926."""
    channels = check_image_shape(input_shape)[0]
    check_sizes(width=width)
    features = nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1, bias=bias),
        make_activation(activation),
        nn.Conv2d(width, width, 4, stride=2, padding=1, bias=bias),
        make_activation(activation),
        nn.Conv2d(width, 2 * width, 3, padding=1, bias=bias),
        make_activation(activation),
        nn.Conv2d(2 * width, 2 * width, 4, stride=2, padding=1, bias=bias),
        make_activation(activation),
        nn.Flatten(),
    )
    hidden = max(1, 100 * width // 32)
    return nn.Sequential(
        *features,
        nn.Linear(flat_size(features, input_shape), hidden),
        make_activation(activation),
        nn.Linear(hidden, num_classes),
    )


def simple_cnn(
    *,
    num_classes: int = 10,
    input_shape: InputShape = (3, 32, 32),
    width: int = 32,
    activation: str = "relu",
    bias: bool = False,
) -> nn.Sequential:
    """Two pairs of convolutions with pooling, two linear layers.  SimpleCNN of C, 361,706 (layout inferred)."""
    channels = check_image_shape(input_shape)[0]
    check_sizes(width=width)
    features = nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1, bias=bias),
        make_activation(activation),
        nn.Conv2d(width, width, 3, bias=bias),
        make_activation(activation),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1, bias=bias),
        make_activation(activation),
        nn.Conv2d(2 * width, 2 * width, 3, bias=bias),
        make_activation(activation),
        nn.MaxPool2d(2),
        nn.Flatten(),
    )
    return nn.Sequential(
        *features,
        nn.Linear(flat_size(features, input_shape), 4 * width),
        make_activation(activation),
        nn.Linear(4 * width, num_classes),
    )


def lenet(
    *, num_classes: int = 10, input_shape: InputShape = (3, 32, 32), activation: str = "relu", bias: bool = True
) -> nn.Sequential:
    """LeNet of B, 62,006 on CIFAR.  LeCun et al. (1998)."""
    channels = check_image_shape(input_shape)[0]
    features = nn.Sequential(
        nn.Conv2d(channels, 6, 5, bias=bias),
        make_activation(activation),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5, bias=bias),
        make_activation(activation),
        nn.MaxPool2d(2),
        nn.Flatten(),
    )
    return nn.Sequential(
        *features,
        nn.Linear(flat_size(features, input_shape), 120),
        make_activation(activation),
        nn.Linear(120, 84),
        make_activation(activation),
        nn.Linear(84, num_classes),
    )


class GlobalAverage(nn.Module):
    """The mean over height and width."""

    def forward(self, inputs: Tensor) -> Tensor:
        """(n, channels, height, width) -> (n, channels)."""
        return inputs.mean(dim=(2, 3))


def all_cnn(
    *,
    num_classes: int = 100,
    input_shape: InputShape = (3, 32, 32),
    width: int = 96,
    activation: str = "relu",
    bias: bool = True,
) -> nn.Sequential:
    """All-CNN-C, nine convolutions and a global average; 1,387,108 for 100 classes (D).  Springenberg et al. (2015)."""
    channels = check_image_shape(input_shape)[0]
    check_sizes(width=width)
    double = 2 * width
    plan = [  # inputs, outputs, kernel, stride
        (channels, width, 3, 1),
        (width, width, 3, 1),
        (width, width, 3, 2),
        (width, double, 3, 1),
        (double, double, 3, 1),
        (double, double, 3, 2),
        (double, double, 3, 1),
        (double, double, 1, 1),
    ]
    layers: list[nn.Module] = []
    for inputs, outputs, kernel, stride in plan:
        layers += [
            nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=bias),
            make_activation(activation),
        ]
    return nn.Sequential(*layers, nn.Conv2d(double, num_classes, 1, bias=bias), GlobalAverage())


def digits_cnn(
    *,
    num_classes: int = 10,
    input_shape: InputShape = (1, 8, 8),
    width: int = 16,
    activation: str = "relu",
    batchnorm: bool = False,
    bias: bool = True,
) -> nn.Sequential:
    """Two convolutions, the second with stride two, and one linear layer: small enough for an 8x8 digit."""
    channels = check_image_shape(input_shape)[0]
    check_sizes(width=width)
    layers: list[nn.Module] = []
    for inputs, outputs, stride in ((channels, width, 1), (width, 2 * width, 2)):
        norm = [nn.BatchNorm2d(outputs)] if batchnorm else []
        layers += [
            nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=bias),
            *norm,
            make_activation(activation),
        ]
    features = nn.Sequential(*layers, nn.Flatten())
    return nn.Sequential(*features, nn.Linear(flat_size(features, input_shape), num_classes))
