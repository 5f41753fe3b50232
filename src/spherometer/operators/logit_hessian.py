"""The Hessian of softmax cross-entropy in the logits, M = diag(p) − pp', and its eigenpairs for many samples at once.

M knows nothing of the label. Its null vector is 1: shifting all logits changes no probability (C Eq 4, 7; Q21, T1).
"""

from __future__ import annotations

import torch
from torch import Tensor

NUM_BISECTIONS = 64  # halvings of the gap between the two largest probabilities


def logit_hessian(probabilities: Tensor) -> Tensor:
    """M = diag(p) − pp' for each row: (..., C) -> (..., C, C), in double precision (C Eq 4, 7; Q21).

    Example:
        >>> logit_hessian(torch.tensor([0.5, 0.5]))
        tensor([[ 0.2500, -0.2500],
                [-0.2500,  0.2500]], dtype=torch.float64)
    """
    p = _checked(probabilities)
    products = -p[..., :, None] * p[..., None, :]
    largest = p.argmax(-1, keepdim=True)
    rest = p.scatter(-1, largest, 0).sum(-1, keepdim=True)  # keeps its digits where 1 − p has lost them
    others = (1 - p).scatter(-1, largest, rest)
    return products.diagonal_scatter(p * others, dim1=-2, dim2=-1)


def logit_hessian_eigenpairs(probabilities: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues λ⁽¹⁾ ≥ … ≥ λ⁽ᶜ⁾ = 0 (..., C) and eigenvectors (columns of (..., C, C)) of M (C Thm 4.1; Q22).

    By a dense solver in double precision, because the secular equation of the theorem loses the eigenvalues of tied
    and of zero probabilities (C-e3). Sign: the entry of class (i) is not below that of class (i+1), where (i) is the
    class with the i-th largest probability. Within a tied eigenvalue any basis is as right as the one returned.

    Example:
        >>> logit_hessian_eigenpairs(torch.tensor([0.7, 0.3]))[0]
        tensor([0.4200, 0.0000], dtype=torch.float64)
    """
    p = _checked(probabilities)
    values, vectors = torch.linalg.eigh(logit_hessian(p))
    values, vectors = values.flip(-1).clamp(min=0), vectors.flip(-1)
    values[..., -1] = 0
    order = p.argsort(dim=-1, descending=True, stable=True)
    along = vectors.gather(-2, order[..., :, None].expand_as(vectors))  # rows in sorted-class coordinates
    falls = along.diagonal(dim1=-2, dim2=-1).clone()
    falls[..., :-1] -= along.diagonal(offset=-1, dim1=-2, dim2=-1)  # q⁽ⁱ⁾ at class (i) less q⁽ⁱ⁾ at class (i+1)
    signs = torch.where(falls < 0, -1.0, 1.0).to(vectors)
    return values, vectors * signs[..., None, :]


def top_logit_eigenpair(probabilities: Tensor) -> tuple[Tensor, Tensor]:
    """λ⁽¹⁾ (...,) and q⁽¹⁾ (..., C) of M alone: by bisection of Σ p_j/(p_j − λ) = 0 between the two largest p.

    Dividing C's secular equation by −λ gives this form, which stays accurate relative to λ⁽¹⁾ itself for saturated
    outputs. Tied p: λ⁽¹⁾ = p_(1), q⁽¹⁾ = (e_(1) − e_(2))/√2. One-hot p: λ⁽¹⁾ = 0 and q⁽¹⁾ is that same vector.
    Cost: 64 C operations a sample, whatever the number of classes.
    """
    p = _checked(probabilities)
    if p.shape[-1] == 1:
        return torch.zeros_like(p[..., 0]), torch.ones_like(p)
    order = p.argsort(dim=-1, descending=True, stable=True)
    ordered = p.gather(-1, order)
    first, second = ordered[..., :1], ordered[..., 1:2]
    origin = torch.where(_rising(ordered, first, (second - first) / 2) < 0, first, second)  # the nearer pole
    rest = ordered[..., 1:].sum(
        -1, keepdim=True
    )  # λ⁽¹⁾ ≤ 2 p_(1) (1 − p_(1)) ≤ 2 rest (T2) sets the scale when saturated
    reach = torch.where(origin == first, (second - first) / 2, ((first - second) / 2).minimum(2 * rest))
    shift = _bisected(ordered, origin, reach)
    distances = ordered - origin - shift  # p_j − λ without cancellation
    vector = torch.where(distances == 0, 0, ordered / torch.where(distances == 0, 1, distances))
    plain = torch.zeros_like(vector)
    plain[..., 0], plain[..., 1] = 1, -1
    degenerate = (first == second) | (second == 0)
    vector = torch.where(degenerate, plain, vector)
    vector = vector / vector.norm(dim=-1, keepdim=True)
    value = torch.where(degenerate, second, origin + shift)  # tied: p_(1) = p_(2); one-hot: p_(2) = 0
    return value[..., 0], torch.zeros_like(vector).scatter(-1, order, vector)


def secular_function(probabilities: Tensor, at: Tensor) -> Tensor:
    """v(λ) = 1 − Σ p_i² / (p_i − λ) for p (..., C) at points λ (k,): (..., k) (C Thm 4.1(a), Fig 7).

    Its zeros are eigenvalues of M if all p_i are distinct and above zero (C-e3); it falls between two poles, from +∞
    right of one to −∞ left of the next. At a pole λ = p_i > 0 it is nan, so that a plotted line breaks there; a zero
    probability makes no pole.
    """
    p, points = _checked(probabilities), at.double()
    distances = p[..., None, :] - points[:, None]
    squares = p.square()[..., None, :].expand_as(distances)
    terms = torch.where(squares == 0, 0, squares / distances)
    value = 1 - terms.sum(-1)
    return torch.where(((distances == 0) & (squares > 0)).any(-1), torch.nan, value)


def root_product(probabilities: Tensor, vectors: Tensor) -> Tensor:
    """L u with L = diag(√p) − p√p', a closed form with L L' = M (T7).

    1'L = 0 gives the entry of the likeliest class from the others, without cancellation for saturated outputs.
    """
    root = probabilities.sqrt()
    product = root * vectors - probabilities * (root * vectors).sum(-1, keepdim=True)
    largest = probabilities.argmax(-1, keepdim=True).expand(*product.shape[:-1], 1)
    others = product.scatter(-1, largest, 0.0)
    return others.scatter(-1, largest, -others.sum(-1, keepdim=True))


def root_adjoint(probabilities: Tensor, vectors: Tensor) -> Tensor:
    """L' u = √p ∘ (u − p·u), with u shifted to zero at the likeliest class first: L'1 = 0."""
    largest = probabilities.argmax(-1, keepdim=True).expand(*vectors.shape[:-1], 1)
    shifted = vectors - vectors.gather(-1, largest)
    return probabilities.sqrt() * (shifted - (probabilities * shifted).sum(-1, keepdim=True))


def _rising(ordered: Tensor, origin: Tensor, shift: Tensor) -> Tensor:
    """Σ_j p_j / (p_j − λ) at λ = origin + shift: rises from −∞ to +∞ between neighbouring poles."""
    distances = ordered - origin - shift
    return torch.where(ordered == 0, 0, ordered / distances).sum(-1, keepdim=True)


def _bisected(ordered: Tensor, origin: Tensor, end: Tensor) -> Tensor:
    """The shift from `origin`, between 0 and `end`, at which the secular sum changes its sign."""
    near, far = torch.zeros_like(end), end
    for _ in range(NUM_BISECTIONS):
        middle = (near + far) / 2
        # Right of the lower pole the sum is negative until the root, left of the upper one positive.
        inside = (_rising(ordered, origin, middle) < 0) == (end > 0)
        near, far = torch.where(inside, middle, near), torch.where(inside, far, middle)
    return (near + far) / 2


def _checked(probabilities: Tensor) -> Tensor:
    p = probabilities.detach().double()
    total = p.sum(-1)
    if p.numel() and (bool((p < 0).any()) or not torch.allclose(total, torch.ones_like(total), atol=1e-4)):
        raise ValueError(
            "expected probabilities: not negative, with sum one along the last axis; use outputs.softmax(-1)"
        )
    return p
