"""Advice on each problem that the checker reports: what to write instead of code that XLA refuses.

A problem has a code, such as VX101. Every possible value of :attr:`Finding.fix` is here, so that
tests can check each text.
"""

from __future__ import annotations

_STATIC_ROWS = (
    "keep the shape with a mask in place of the indices. Or torch.nonzero_static(x, size=bound, "
    "fill_value=0), whose rows from x.count_nonzero() on are no results: mask them"
)

# A key is the code for JAX, or `torch` and the code for PyTorch. Further words tell the cases of a
# code apart.
ADVICE = {
    "VX101": "compute both sides and choose with jnp.where, or trace both with jax.lax.cond",
    "VX101 in a loop": "run the loop to a fixed bound, and keep what is finished: "
    "x = jnp.where(finished, x, new_x); or jax.lax.while_loop with the condition",
    "VX101 raises": "check outside of the step, or with jax.experimental.checkify",
    "VX102": "jax.lax.while_loop, or a bounded jax.lax.fori_loop with a mask where gradients are "
    "needed",
    "VX103": "jax.lax.fori_loop, or a loop to a fixed bound whose later turns are masked out",
    "VX104": "keep the whole axis and mask what is outside of the slice; a window of constant "
    "length is jax.lax.dynamic_slice_in_dim, which moves the window where it would pass the end. A "
    "negative bound counts from the end: add the axis's length to it",
    "VX105": "keep the shape: jnp.where(mask, x, 0), a reduction with where=mask, or "
    "jnp.nonzero(mask, size=bound, fill_value=...). Mask after layers: a bias makes values of "
    "zeros",
    "VX106": "keep the shape with a mask in place of the results",
    "VX106 with an argument": "give `{api}` the argument {argument}= with a bound that always "
    "suffices",
    "VX106 with a filling": "give `{api}` the argument {argument}= with a bound that always "
    "suffices, and fill_value= for the rest",
    "VX106 with a flag": "give `{api}` the argument {flag}; {effect}",
    "VX107": "make the shape a bound that always suffices and mask the rest, or pass the number as "
    "a static argument (static_argnames=)",
    "VX108": "keep it an array: x.astype(...) and functions of jnp instead of int, float, math and "
    ".item(); or return it from the step and convert it outside. A size or a count has to be a "
    "bound that always suffices, or a static argument",
    "VX109": "use jnp in place of np inside of the step, or move the conversion out of it",
    "VX109 twin": "jnp.{name} computes the same inside of the program",
    "VX110": "check outside of the step, or with jax.experimental.checkify",
    "VX111": "stack the entries into an array and index that, or choose between functions with "
    "jax.lax.switch",
    "VX112": "pass a Python value, and mark the argument static (static_argnames=)",
    "VX113": "x = x.at[i].set(v) makes a new array; under jit it is updated in place",
    "VX114": "jax.debug.print prints from inside of the program; or return the value and print it "
    "outside",
    "VX115": "look it up outside of the step, or stack the entries into an array and index that",
    "VX190": "revise the function as the message says",
    "VX190 runs": "revise the function as the message says; without jit it runs",
    "VX190 hash": "register its class as a pytree (jax.tree_util.register_dataclass), or make it "
    "hashable (@dataclass(frozen=True)) and static",
    "VX190 declared": "give a tuple in place of a list, a frozen dataclass in place of a dict",
    "VX191": "give example inputs that the function accepts",
    "VX191 by name": "give these by name: kwargs={{{given}}}, or `--inputs {tokens}` on the "
    "command line",
    "VX191 no end": "end the loop; or, where the program is long, allow it more time: seconds=",
    "VX201": "fine for few values: {ways}. For many, pass an array and {fix}",
    "VX202": "pad to one shape, or to few: vx.bucket_capacity rounds sizes up",
    "VX203": "convert it once, where it is made: jnp.asarray(value, dtype)",
    "VX203 call": "give it an array each time: {arrays}",
    "VX203 state": "begin with an array: {array}",
    "VX204": "always give the same keys, lengths and Nones",
    "VX205": "pass the value as an argument; for random numbers, a jax.random key",
    "VX301": "return it, and keep what the compiled function returned",
    "VX302": "compute it with jnp, or return what the host needs and call it after the step",
    "VX303": "place the arguments before the step, and constrain results with out_shardings",
    "VX304": "make it an argument of the compiled function",
    "VX305": "ask for the 32-bit dtype, or enable 64 bits: jax.config.update('jax_enable_x64', "
    "True)",
    "VX306": "convert the other operand: .astype({narrow!r}), or this one where it is meant",
    "VX307": "make the operand safe first: jnp.where(ok, f(jnp.where(ok, x, 1.0)), 0.0)",
    "VX308": "remove it when the bug is found",
    "VX309": "give capacity={enough}, which is vx.bucket_capacity({count}); vx.plan(model, voxels) "
    "fits every level",
    "VX310": "vx.plan(model, voxels) builds all maps once, before the step. Or hand on the same "
    "voxels: those that went through jax.jit or a checkpoint of their own have lost their maps",
    "torch VX101": "compute both sides and choose with torch.where, or trace both with torch.cond",
    "torch VX101 in a loop": "run the loop to a fixed bound, and keep what is finished: "
    "x = torch.where(finished, x, new_x)",
    "torch VX101 raises": "check outside of the step, or with torch._assert_async",
    "torch VX102": "a loop to a fixed bound whose later turns torch.where discards, or "
    "torch.while_loop",
    "torch VX103": "a loop to a fixed bound whose later turns torch.where discards",
    "torch VX104": "keep the whole axis and mask what is outside of the slice: "
    "torch.where(torch.arange(len(x)) < n, x, 0), the condition with x's number of axes",
    "torch VX105": "keep all rows, and mask where rows are combined or returned: "
    "torch.where(mask, f(x), 0), and divide by mask.sum() for a mean. Mask after layers: a bias "
    "makes values of zeros",
    "torch VX106": "keep the shape with a mask in place of the results",
    "torch VX106 nonzero": _STATIC_ROWS,
    "torch VX106 nms": "keep all boxes, and a mask of those that survive",
    "torch VX107": "make the shape a bound that always suffices and mask the rest, or pass the "
    "number as a Python argument: one program for each value",
    "torch VX107 repeat_interleave": "give `repeat_interleave` the argument output_size= with the "
    "number of results, where it is known",
    "torch VX107 bincount": "count in a fixed number of bins: F.one_hot(x, bins).sum(0), or "
    "torch.zeros(bins).index_add(0, x, ones); minlength= is no upper bound",
    "torch VX107 one_hot": "give `one_hot` the argument num_classes= with the number of classes",
    "torch VX108": "keep it a tensor where it is computed with: x.to(...) and functions of torch "
    "instead of int, float, math and .item(); or return it from the step and convert it outside. A "
    "size or a count has to be a bound that always suffices, or a Python argument: one program for "
    "each value",
    "torch VX109": "use torch instead of NumPy and lists inside of the step, or move the "
    "conversion out of it",
    "torch VX110": "check outside of the step, or with torch._assert_async",
    "torch VX111": "torch.stack the entries and index that, or compute all and choose with "
    "torch.where",
    "torch VX112": "pass a Python value: one program for each",
    "torch VX112 row": "PyTorch reads a single index as a number. x.index_select(0, "
    "i.reshape(1))[0] keeps it a tensor",
    "torch VX114": "return the value, and print it outside of the step",
    "torch VX191": "give example inputs that the module accepts",
    "torch VX192": "see the message; it is PyTorch's own",
    "torch VX192 output": "return tensors, and tuples, lists and dicts of them: for a cache of "
    "transformers, use_cache=False. Or register the class as a pytree: "
    "torch.utils._pytree.register_pytree_node, with flatten_with_keys_fn=",
    "torch VX192 input": "pass tensors, and tuples, lists and dicts of them, or make it an "
    "attribute of the module. Or register the class as a pytree: "
    "torch.utils._pytree.register_pytree_node, with flatten_with_keys_fn=",
    "torch VX201": "fine for few values: each is exported and compiled. For many, pass a tensor",
    "torch VX201 and": "fine for few values: each is exported and compiled. For many, pass a "
    "tensor and {fix}",
    "torch VX205": "pass the value as an argument, or draw it with torch",
    "torch VX301": "return it; or, where it is state, register_buffer and copy_ into it",
    "torch VX303": "place inputs and module before the step; for a new tensor, device=x.device",
    "torch VX304": "make it a buffer (register_buffer), or an argument",
    "torch VX306": "convert the other operand: .to(torch.{narrow}), or this one where it is meant",
    "torch VX307": "make the operand safe first: torch.where(ok, f(torch.where(ok, x, 1.0)), 0.0)",
    "torch VX311": "write x.detach(), or run the module under torch.no_grad()",
}
