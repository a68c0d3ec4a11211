"""Trainers with jitted steps: for any objective, and for classification of voxels or scenes."""

from __future__ import annotations

import abc
import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from voxax import _compat
from voxax._array_types import Array, Float, Int, Int32
from voxax._native.operators import differentiable_operator
from voxax.errors import CapacityError, InputError
from voxax.geometry import Voxels
from voxax.geometry.call_checks import checked_operator
from voxax.geometry.lost_rows import LostRows
from voxax.geometry.row_operations import as_dtype
from voxax.hardware import keep_programs as keep_programs_on_disk
from voxax.models.checkpoint import check_same_arrays
from voxax.models.fine_tuning import average_in, check_parts, part_of
from voxax.models.writers import OnMetrics

_log = logging.getLogger(__name__)


@checked_operator
def masked_cross_entropy(
    logits: Float[Array | np.ndarray, "N classes"],
    labels: Int[Array | np.ndarray, " N"],
    class_weights: Float[Array | np.ndarray, " classes"] | None = None,
    axis_name: str | tuple[str, ...] | None = None,
    *,
    ignore_label: int | None = None,
) -> Float[Array, ""]:
    """Return the mean softmax cross entropy over the rows with a label; 0 if there is none.

    Args:
      logits: ``[N, classes]``.
      labels: ``int[N]``, 0 to ``classes - 1``. Rows with a negative label (padding, unlabeled) or
        with ``ignore_label`` do not count. In traced calls, rows with any other label outside the
        classes do not count either; :func:`count_outside` returns their number.
      class_weights: weight of each class in the mean, ``float32[classes]``; None is 1 for all.
      axis_name: name of a mapped axis; the mean is then over the rows of all its devices. None is
        for one device.
      ignore_label: label of unlabeled rows, in addition to negative numbers; 255 in many data sets.

    Raises:
      InputError: the shapes do not match, labels are not integers, or labels that are not traced
        lie outside the classes.
    """
    check_rows(logits, labels)
    classes = logits.shape[1]
    if class_weights is not None and np.shape(class_weights) != (classes,):
        raise InputError(
            f"class_weights of shape {list(np.shape(class_weights))} for {classes} classes: give "
            f"[{classes}], one weight for each"
        )
    if not _compat.is_traced(logits, labels):
        check_labels(labels, classes, ignore_label)
    given = np.zeros(0, np.float32) if class_weights is None else class_weights
    operands = logits, _as_int32(labels), as_dtype(jnp.asarray(given), jnp.float32)
    ignored = _narrow(ignore_label)
    if axis_name is None and logits.dtype.name in _NATIVE:
        return _cross_entropy(*operands, ignored=ignored)[0]
    return _portable_cross_entropy(*operands, ignored=ignored, axis_name=axis_name)[0]


_NATIVE = ("float32", "bfloat16", "float16")


def _portable_cross_entropy(
    logits: Any, labels: jax.Array, weights: jax.Array, *, ignored: int, axis_name: Any = None
) -> tuple[jax.Array, jax.Array]:
    """Return the mean cross entropy of the rows with a label, and the sum of their weights.

    Unlike the native kernel, this works on every platform, and over the devices of a mapped axis.
    The arguments are those of :func:`masked_cross_entropy`, with ``ignored`` for ``ignore_label``
    and ``weights`` for ``class_weights``. Empty ``weights`` are 1 for all classes.
    """
    known = (labels >= 0) & (labels < logits.shape[1]) & (labels != ignored)
    rows = jnp.where(known[:, None], logits.astype(jnp.float32), 0.0)
    # Compare instead of gathering, because a TPU gathers one number after the other.
    classes = jnp.arange(logits.shape[1], dtype=labels.dtype)[None]
    own = (classes == labels[:, None]) & known[:, None]
    loss = jax.nn.logsumexp(rows, axis=1) - jnp.sum(jnp.where(own, rows, 0.0), axis=1)
    weight = known.astype(jnp.float32)
    if weights.shape[0]:
        weight = weight * jnp.sum(jnp.where(own, weights[None], 0.0), axis=1)
    total, number = jnp.sum(loss * weight), jnp.sum(weight)
    if axis_name is not None:
        total, number = jax.lax.psum((total, number), axis_name)
    return total / jnp.maximum(number, 1e-6), number


def _cross_entropy_value(call: Any, logits: Any, labels: Any, weights: Any, *, ignored: int) -> Any:
    number = jax.ShapeDtypeStruct((), jnp.float32)
    return call("cross_entropy", (number, number), logits, labels, weights, sizes=(ignored,))


def _cross_entropy_gradients(
    call: Any, ct: Any, *given: Any, moves: tuple[int, ...], ignored: int
) -> Any:
    if moves != (0,):
        return None
    logits, labels, weights, _, number = given
    result = jax.ShapeDtypeStruct(logits.shape, logits.dtype)
    operands = logits, labels, weights, number, ct
    return call("cross_entropy_gradients", (result,), *operands, sizes=(ignored,))


_cross_entropy = differentiable_operator(
    "voxax_cross_entropy",
    _cross_entropy_value,
    _portable_cross_entropy,
    _cross_entropy_gradients,
)


def check_rows(logits: Any, labels: Any) -> None:
    """Raise :class:`voxax.InputError` unless logits and labels are arrays of as many rows.

    Args:
      logits: ``[N, classes]``.
      labels: ``[N]``.
    """
    for name, values in ("logits", logits), ("labels", labels):
        if not hasattr(values, "shape"):
            raise InputError(
                f"{name} is an array, got {type(values).__name__}: of voxels give voxels.features"
            )
    if logits.ndim != 2 or labels.shape != logits.shape[:1]:
        raise InputError(
            f"labels of shape {list(labels.shape)} for logits of shape {list(logits.shape)}: give "
            "[N] and [N, classes]"
        )


def check_labels(labels: Any, classes: int, ignore_label: int | None = None) -> None:
    """Raise :class:`voxax.InputError` if a label is too large for the number of classes.

    Args:
      labels: ``int[...]``, not traced; negative numbers mark unlabeled rows.
      classes: number of classes.
      ignore_label: label of unlabeled rows, in addition to negative numbers.
    """
    values = np.asarray(labels)
    # Compare on the host, because 64-bit labels would wrap around in JAX.
    outside = (values >= classes) & (values != (-1 if ignore_label is None else ignore_label))
    if outside.any():
        found = np.unique(values[outside])
        shown = ", ".join(map(str, found[:4].tolist())) + (", ..." if len(found) > 4 else "")
        raise InputError(
            f"{int(outside.sum())} of {values.size} labels are {shown}, outside the {classes} "
            f"classes 0 to {classes - 1}: count classes from 0; rows without a label are negative, "
            f"or named by ignore_label={found[-1]}"
        )


@checked_operator
def count_outside(
    labels: Int[Array | np.ndarray, "..."], classes: int, ignore_label: int | None = None
) -> Int32[Array, ""]:
    """Count the labels that are at least ``classes`` and not ``ignore_label``, ``int32[]``.

    Args:
      labels: ``int[...]``, possibly traced.
      classes, ignore_label: as in :func:`check_labels`.

    Raises:
      InputError: labels are not integers.
    """
    labels = _as_int32(labels)
    return jnp.sum((labels >= classes) & (labels != _narrow(ignore_label)), dtype=jnp.int32)


def _as_int32(labels: Any) -> jax.Array:
    """Return integer labels as ``int32``.

    Labels of dtypes that reach beyond ``int32``, such as ``int64``, are clipped to -1 and
    ``2**31 - 1`` first, so that none wraps around to the number of a class.
    """
    if not hasattr(labels, "dtype"):
        raise InputError(f"labels of type {type(labels).__name__}: give an array of integers")
    if not jnp.issubdtype(labels.dtype, jnp.integer):
        raise InputError(f"labels of {labels.dtype}: expected integers, one class for each row")
    info = jnp.iinfo(labels.dtype)
    if info.max > 2**31 - 1:  # wider values must not wrap around into a class
        clip = np.clip if isinstance(labels, np.ndarray) else jnp.clip
        labels = clip(labels, max(int(info.min), -1), 2**31 - 1)
    if isinstance(labels, np.ndarray):
        return jax.device_put(labels.astype(np.int32))
    return as_dtype(labels, jnp.int32)


def _narrow(ignore_label: int | None) -> int:
    return -1 if ignore_label is None else max(min(ignore_label, 2**31 - 1), -1)


class StepTrainer(abc.ABC):
    """Base class of trainers: a module, its optimizer state, and jitted training steps.

    Subclasses define the loss. The module is stored split into parameters and other state, and each
    step merges it inside ``jax.jit``. On small networks a step has a fifth of the overhead that it
    has with ``nnx.jit``.

    A step reuses the memory of the parameters and of the optimizer state (donation). An array that
    was read from ``params`` or ``optimizer_state`` before a step cannot be used after the step. All
    methods return copies.

    Args:
      model: a module that takes Voxels; its arrays are copied.
      optimizer: an optax transformation.
      keep_programs: whether this process stores compiled programs on disk from now on, see
        :func:`voxax.keep_programs`.

    Attributes:
      on_metrics: function that is called after each step with the number of the step and a
        dictionary of ``loss`` and ``dropped`` (number of rows lost to capacity), arrays on the
        device; or None. See :mod:`voxax.models.writers`.
    """

    on_metrics: OnMetrics | None = None

    def __init__(
        self,
        model: nnx.Module,
        optimizer: optax.GradientTransformation,
        *,
        keep_programs: bool = True,
    ) -> None:
        if not isinstance(model, nnx.Module) or not hasattr(optimizer, "update"):
            given = " and ".join(
                a.__name__ if isinstance(a, type) else type(a).__name__ for a in (model, optimizer)
            )
            raise InputError(
                f"a trainer of {given}: give a flax.nnx module, then an optimizer of optax, such "
                "as Trainer(MinkUNet18(4, 20), optax.adamw(1e-3))"
            )
        if keep_programs:
            keep_programs_on_disk()
        model.train()
        self._train_graph, *kept = nnx.split(model, nnx.Param, ...)
        model.eval()
        self._eval_graph = nnx.split(model, nnx.Param, ...)[0]
        model.train()
        # Copies, because a step deletes them, and some optimizers keep the parameters themselves.
        self.params, self.state = _copied(kept)
        self.optimizer_state = _copied(_initial_state(optimizer, self.params))
        self.steps = 0
        self.programs = 0
        self._frozen: tuple[str, ...] = ()
        self._is_traced = False

        def gradients(params: Any, state: Any, voxels: Voxels, labels: Any) -> Any:
            self.programs += 1  # runs while tracing: once per compiled program
            self._is_traced = True
            _log.info("program %d: a training step of %d rows", self.programs, voxels.capacity)

            def loss_of(params: Any) -> tuple[jax.Array, tuple[Any, Any, Any]]:
                params = _constant(params, self._frozen)
                module = nnx.merge(self._train_graph, params, state, copy=True)
                loss, prediction, counts = self._objective(module, voxels, labels)
                new_state = nnx.split(module, nnx.Param, ...)[2]
                return loss, (new_state, prediction, counts)

            (loss, (new_state, prediction, counts)), grads = jax.value_and_grad(
                loss_of, has_aux=True
            )(params)
            return grads, new_state, loss, prediction, counts

        def update(params: Any, opt: Any, grads: Any) -> Any:
            # Optimizers mix integers and floats.
            with jax.numpy_dtype_promotion("standard"):
                updates, opt = optimizer.update(grads, opt, params)
                return optax.apply_updates(params, updates), opt

        def evaluate(params: Any, state: Any, voxels: Voxels) -> Any:
            self.programs += 1
            _log.info("program %d: an evaluation of %d rows", self.programs, voxels.capacity)
            return self._evaluation(nnx.merge(self._eval_graph, params, state, copy=True), voxels)

        self._gradients = self._jit(gradients, (False, False, False, True, False))
        # A separate program, which serves every size: it takes as long to compile as a network.
        self._update = jax.jit(update, donate_argnums=(0, 1))
        self._evaluate = self._jit(evaluate, (True, False))

    @abc.abstractmethod
    def _objective(self, module: Any, voxels: Voxels, labels: Any) -> tuple[Any, Any, Any]:
        """Return ``(loss, prediction, counts)`` for one batch; JAX traces this method.

        :meth:`step` returns the loss and the prediction. The trainer passes ``counts``, such as the
        number of rows lost to capacity, to :meth:`_counted`. They must be sums over all devices.

        Args:
          module: the module in training mode. Its state other than parameters may change.
          voxels: the input.
          labels: the labels given to :meth:`step`.
        """

    @abc.abstractmethod
    def _evaluation(self, module: Any, voxels: Voxels) -> tuple[Any, Any]:
        """Return the result of :meth:`evaluate` for one batch, and the rows lost at each level.

        JAX traces this method. ``module`` is in evaluation mode. The counts of lost rows must be
        sums over all devices.
        """

    @abc.abstractmethod
    def _counted(self, counts: Any) -> jax.Array:
        """Return the number of rows lost to capacity, given the ``counts`` of :meth:`_objective`.

        If ``counts`` contains more, such as the number of labels that are not a class, the subclass
        stores it in an attribute.
        """

    def _check(self, labels: Any) -> None:
        """Raise :class:`voxax.InputError` if the labels are invalid; the base class never does."""
        del labels

    def _jit(self, program: Callable[..., Any], by_shard: tuple[bool, ...]) -> Any:
        """Return ``program`` compiled by ``jax.jit``; trainers on several devices override this.

        The first two arguments of ``program`` are the module's parameters and its other state.
        ``by_shard`` states for each result of ``program`` whether its rows are split over devices.
        """
        del by_shard
        return jax.jit(program)

    def step(self, voxels: Voxels, labels: Any) -> tuple[jax.Array, Any, jax.Array]:
        """Run one training step; return ``(loss, prediction, number of rows lost to capacity)``.

        ``voxels`` is the module's input. Each subclass defines the form of ``labels``, which is an
        array or a pytree of arrays, and of the prediction.

        Raises:
          InputError: the labels are invalid; the trainer is unchanged then.
        """
        wrong = [leaf for leaf in jax.tree.leaves(labels) if not hasattr(leaf, "dtype")]
        if wrong or not jax.tree.leaves(labels):
            what = type(wrong[0] if wrong else labels).__name__
            raise InputError(f"labels of type {what}: give an array, int[capacity] of classes")
        arguments = self._arguments(voxels, labels)
        if not self._is_traced:
            self._gradients.eval_shape(*arguments)  # sets the number of classes
        self._check(labels)
        grads, state, loss, prediction, counts = self._gradients(*arguments)
        params, optimizer_state = self._update(self.params, self.optimizer_state, grads)
        self.params, self.state, self.optimizer_state = params, state, optimizer_state
        self.steps += 1
        dropped = self._counted(counts)
        if self.on_metrics is not None:
            self.on_metrics(self.steps, {"loss": loss, "dropped": dropped})
        return loss, prediction, dropped

    def _placed(self, arguments: Any) -> Any:
        """Return the arguments of a jitted program as arrays on the trainer's devices.

        Trainers on several devices override this; the base class returns them unchanged.
        """
        return arguments

    def evaluate(self, voxels: Voxels) -> Any:
        """Return the module's output in evaluation mode.

        With an optimizer of :func:`voxax.models.fine_tuning.averaged`, the averaged parameters are
        used.

        Raises:
          CapacityError: voxels were lost because the capacity of some level is too small.
        """
        params = average_in(self.optimizer_state, self.params)
        output, drops = self._evaluate(params, self.state, self._placed(voxels))
        if lost := {level: n for level, n in drops.items() if n}:
            levels = "; ".join(f"level of stride {k}: {n} rows lost" for k, n in lost.items())
            raise CapacityError(
                f"capacity overflow on the way to the output: {levels}. Give a larger capacity=, "
                "or a plan that is fitted to samples as large as this one"
            )
        return output

    def compile(self, voxels: Voxels, labels: Any) -> None:
        """Compile the training step for the shapes of ``voxels`` and ``labels``; run nothing."""
        arguments = self._arguments(voxels, labels)
        self._gradients.lower(*arguments).compile()
        grads, *_ = self._gradients.eval_shape(*arguments)
        self._update.lower(self.params, self.optimizer_state, grads).compile()

    def _arguments(self, voxels: Voxels, labels: Any) -> tuple[Any, ...]:
        return (self.params, self.state, *self._placed((voxels, labels)))

    def model(self) -> nnx.Module:
        """Return a copy of the module in training mode, with the parameters that ``evaluate`` uses.

        With :func:`voxax.models.fine_tuning.averaged` these are the averaged parameters.
        """
        params = average_in(self.optimizer_state, self.params)
        return nnx.merge(self._train_graph, *_copied((params, self.state)), copy=True)

    def start_from(self, model: nnx.Module) -> None:
        """Copy the parameters and statistics of a module into the trainer, before the first step.

        Args:
          model: module of the same structure as the trainer's, with arrays of the same dtypes.

        Raises:
          InputError: an array's name, shape or dtype differs from that of the trainer.
        """
        params, state = nnx.split(model, nnx.Param, ...)[1:]
        taken = {"params": nnx.to_pure_dict(params), "state": nnx.to_pure_dict(state)}
        self.load_tree({**self.tree(), **taken})

    def freeze(self, parts: Sequence[str]) -> None:
        """Freeze parts of the module: stop their training. Call it before the first step.

        Frozen parts run in evaluation mode and have gradients of zero. Weight decay in the
        optimizer would still change them. To prevent this, build the optimizer with
        :func:`voxax.models.fine_tuning.by_part`, and ``optax.set_to_zero()`` for these parts.

        Args:
          parts: names of parts, such as ``"stem"`` or ``"down.0"``.

        Raises:
          InputError: a part has no parameters.
        """
        module = nnx.merge(self._train_graph, self.params, self.state, copy=True)
        check_parts(module, parts)
        for path, inner in nnx.iter_modules(module):
            if part_of(path, parts):
                inner.eval()
        self._frozen = tuple(parts)
        self._train_graph = nnx.split(module, nnx.Param, ...)[0]

    def tree(self) -> dict[str, Any]:
        """Return a copy of the trainer's whole state for a checkpoint, as a pytree of arrays."""
        params, state, optimizer = _copied((self.params, self.state, self.optimizer_state))
        return {
            "params": nnx.to_pure_dict(params),
            "state": nnx.to_pure_dict(state),
            "optimizer": jax.tree.leaves(optimizer),
            "steps": np.asarray(self.steps),
        }

    def load_tree(self, tree: dict[str, Any]) -> None:
        """Restore a state that :meth:`tree` returned; the argument ``tree`` is not changed.

        Raises:
          InputError: an array's name, shape or dtype differs from that of the trainer.
        """
        mine = {
            "params": nnx.to_pure_dict(self.params),
            "state": nnx.to_pure_dict(self.state),
            "optimizer": jax.tree.leaves(self.optimizer_state),
        }
        given = {k: v for k, v in tree.items() if k != "steps"}
        check_same_arrays("the tree to load", given, mine, error=InputError)
        own = _copied(jax.tree.map(jnp.asarray, given))
        nnx.replace_by_pure_dict(self.params, own["params"])
        nnx.replace_by_pure_dict(self.state, own["state"])
        structure = jax.tree.structure(self.optimizer_state)
        leaves = own["optimizer"]
        self.optimizer_state = jax.tree.unflatten(structure, leaves)
        self.steps = int(tree["steps"])


def starting_on_host(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """Return the optimizer with an ``init`` that compiles nothing if its initial state is constant.

    An eager ``init`` of optax compiles a program for every shape, 32 for AdamW and a MinkUNet18.
    Trainers call this function themselves. Without a trainer, write ::

        nnx.Optimizer(model, starting_on_host(optax.adamw(1e-3)), wrt=nnx.Param)

    Args:
      optimizer: an optax transformation; its ``update`` stays unchanged.
    """
    return optimizer._replace(init=functools.partial(_initial_state, optimizer))


def _initial_state(optimizer: optax.GradientTransformation, params: Any) -> Any:
    """Return ``optimizer.init(params)``, without compiling it if the initial state is constant."""
    if _compat.is_traced(params):
        return optimizer.init(params)
    program, shapes = jax.make_jaxpr(optimizer.init, return_shape=True)(params)
    leaves, tree = jax.tree.flatten(shapes)
    values = _compat.constants_of(program)
    if values is None or any(
        not p.is_fully_addressable or len(p.devices()) > 1 for p in jax.tree.leaves(params)
    ):
        return jax.jit(optimizer.init)(params)
    made = [
        jax.device_put(np.full(leaf.shape, value, leaf.dtype))
        for leaf, value in zip(leaves, values, strict=True)
    ]
    return jax.tree.unflatten(tree, made)


def _constant(params: Any, parts: Sequence[str]) -> Any:
    """Return ``params`` with gradients stopped in the parts of the module named in ``parts``."""
    if not parts:
        return params

    def one(path: Any, value: jax.Array) -> jax.Array:
        return value if part_of(path, parts) is None else jax.lax.stop_gradient(value)

    return jax.tree_util.tree_map_with_path(one, params)


def _copied(tree: Any) -> Any:
    """Return a copy of a pytree of arrays, on the same devices."""

    def own(x: jax.Array) -> jax.Array:
        # A named device would bind the array to it. Over several processes it must be named.
        place = None if x.is_fully_addressable else x.sharding
        return jax.device_put(x, place, may_alias=False)

    return jax.tree.map(own, tree)


class Trainer(StepTrainer):
    """Trainer of a network that classifies voxels or scenes.

    If the network returns one row of logits per scene, rows lost inside the network cannot be
    counted. :class:`voxax.models.classifier.SceneTrainer` counts them. That trainer takes a network
    that returns Voxels of logits, and averages the logits of each scene.

    Args:
      model: a module from Voxels to Voxels of logits, with labels ``int[capacity]``; or to logits
        ``[scenes, classes]``, as with a final ``GlobalPool``, with labels ``int[scenes]``.
      optimizer: an optax transformation.
      class_weights: weight of each class in the loss, ``float[classes]``; None is 1 for all.
      axis_name: name of the mapped axis of a program that runs on several devices. Losses are
        averaged and counts of lost rows are summed over the devices, see
        :class:`voxax.parallel.DataParallelTrainer`. None is for one device.
      ignore_label: label of unlabeled rows, in addition to negative numbers; 255 in many data sets.
      added_loss: function whose result is added to the cross entropy, such as a multiple of
        :func:`voxax.models.lovasz.lovasz_softmax`. It takes the same arguments as that function.
      on_metrics: function that is called after each step, see :class:`StepTrainer`.
      keep_programs: whether this process stores compiled programs on disk from now on, see
        :func:`voxax.keep_programs`.

    Attributes:
      outside: ``int32[]``, number of rows of the last step whose label is not a class. They do not
        count in the loss.
    """

    def __init__(
        self,
        model: nnx.Module,
        optimizer: optax.GradientTransformation,
        class_weights: np.ndarray | None = None,
        *,
        axis_name: str | tuple[str, ...] | None = None,
        ignore_label: int | None = None,
        added_loss: Callable[..., jax.Array] | None = None,
        on_metrics: OnMetrics | None = None,
        keep_programs: bool = True,
    ) -> None:
        self.on_metrics, self._added_loss = on_metrics, added_loss
        self.ignore_label, self.outside = ignore_label, jax.device_put(np.int32(0))
        self._axis_name = axis_name
        self._classes = 0  # known once a step was traced
        weights = None if class_weights is None else jnp.array(class_weights, jnp.float32)
        self._class_weights = weights
        super().__init__(model, optimizer, keep_programs=keep_programs)

    def _objective(self, module: Any, voxels: Voxels, labels: Any) -> tuple[Any, Any, Any]:
        axis_name, ignored = self._axis_name, self.ignore_label
        logits, drops = self._logits(module(voxels), voxels)
        self._classes = logits.shape[-1]
        weights = self._class_weights
        loss = masked_cross_entropy(logits, labels, weights, axis_name, ignore_label=ignored)
        if self._added_loss is not None:
            more = {"axis_name": axis_name, "ignore_label": ignored}
            loss = loss + self._added_loss(logits, labels, **more)
        counts = drops.number, count_outside(labels, self._classes, ignored)
        if axis_name is not None:
            counts = jax.lax.psum(counts, axis_name)
        return loss, jnp.argmax(logits, axis=-1).astype(jnp.int32), counts

    def _logits(self, out: Any, voxels: Voxels) -> tuple[jax.Array, LostRows]:
        """Return the logits in a module's output ``out``, and the counts of rows lost to capacity.

        If ``out`` is an array of logits, the counts are those of ``voxels``, the module's input,
        because rows lost inside the module are unknown.
        """
        if isinstance(out, Voxels):
            return out.features, out.geometry.drops
        if not isinstance(out, jax.Array) or out.ndim != 2 or self._axis_name is not None:
            shape = f" {list(out.shape)}" if isinstance(out, jax.Array) else ""
            raise InputError(
                f"the model returned {type(out).__name__}{shape}: Trainer takes vx.Voxels of "
                "logits or, on one device, logits [scenes, classes]; for others derive a class "
                "from StepTrainer"
            )
        return out, voxels.geometry.drops

    def _evaluation(self, module: Any, voxels: Voxels) -> tuple[Any, Any]:
        axis_name = self._axis_name
        logits, drops = self._logits(module(voxels), voxels)
        return logits, drops if axis_name is None else drops.summed_over(axis_name)

    def _counted(self, counts: Any) -> jax.Array:
        dropped, self.outside = counts
        return dropped

    def _check(self, labels: Any) -> None:
        if isinstance(labels, np.ndarray):
            check_labels(labels, self._classes, self.ignore_label)

    def step(self, voxels: Voxels, labels: Any) -> tuple[jax.Array, Any, jax.Array]:
        """Run one training step; return ``(loss, predicted classes, rows lost to capacity)``.

        ``labels`` are described at :class:`Trainer`. The predicted classes are ``int32``, one for
        each row of logits.

        Raises:
          InputError: labels in a NumPy array are too large; the trainer is unchanged then. Rows of
            a JAX array with such labels are left out and counted in ``outside``.
        """
        return super().step(voxels, labels)

    def logits(self, voxels: Voxels) -> np.ndarray:
        """Return the logits in evaluation mode, a NumPy array ``float32[capacity, classes]``.

        Raises:
          CapacityError: voxels were lost because the capacity of some level is too small.
        """
        return np.asarray(self.evaluate(voxels))
