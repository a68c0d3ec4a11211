// Batch normalization for plain arrays, called through ctypes. Shapes are checked in
// voxax/_native/host_norm.py.
#include "host_call.h"
#include "kernels.h"

using namespace voxax;

// As voxax::BatchNorm; numbers: momentum and epsilon; flags: 1 training, 2 relu.
VOXAX_EXPORT int64_t voxax_host_batch_norm(const void* x, const bool* valid, const void* residual,
                                           const void* scale, const void* bias,
                                           const void* old_mean, const void* old_variance,
                                           int64_t rows, int64_t channels, int64_t element,
                                           const double* numbers, int64_t flags, int64_t threads,
                                           void* y, void* mean, void* inverse, void* new_mean,
                                           void* new_variance) {
  BatchNorm p{};
  if (!ElementOf(element, &p.element) || !Countable(rows)) return kNotSupported;
  p.x = x;
  p.valid = valid;
  p.residual = residual;
  p.scale = scale;
  p.bias = bias;
  p.old_mean = old_mean;
  p.old_variance = old_variance;
  p.momentum = numbers[0];
  p.epsilon = numbers[1];
  p.training = flags & 1;
  p.relu = flags & 2;
  p.rows = rows;
  p.channels = channels;
  p.y = y;
  p.mean = mean;
  p.inverse = inverse;
  p.new_mean = new_mean;
  p.new_variance = new_variance;
  return OnThreads(threads, [&](const Parallel& parallel, BadRow* bad) {
    BestKernels().batch_norm(p, parallel, bad);
  });
}

// As voxax::BatchNormGradients; flags as above.
VOXAX_EXPORT int64_t voxax_host_batch_norm_gradients(const void* dy, const void* x, const void* y,
                                                     const bool* valid, const void* mean,
                                                     const void* inverse, const void* scale,
                                                     int64_t rows, int64_t channels,
                                                     int64_t element, int64_t flags,
                                                     int64_t threads, void* dx, void* dresidual,
                                                     void* dscale, void* dbias) {
  BatchNormGradients p{};
  if (!ElementOf(element, &p.element) || !Countable(rows)) return kNotSupported;
  p.dy = dy;
  p.x = x;
  p.y = y;
  p.valid = valid;
  p.mean = mean;
  p.inverse = inverse;
  p.scale = scale;
  p.training = flags & 1;
  p.relu = flags & 2;
  p.rows = rows;
  p.channels = channels;
  p.dx = dx;
  p.dresidual = dresidual;
  p.dscale = dscale;
  p.dbias = dbias;
  return OnThreads(threads, [&](const Parallel& parallel, BadRow* bad) {
    BestKernels().batch_norm_gradients(p, parallel, bad);
  });
}
