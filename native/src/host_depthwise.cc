// Depthwise products for plain arrays, called through ctypes. Shapes are checked in
// voxax/_native/host_depthwise.py.
#include "cache.h"
#include "host_call.h"
#include "kernels.h"

using namespace voxax;

// As voxax::Depthwise; flags: 1 wgrad, 2 reversed.
VOXAX_EXPORT int64_t voxax_host_depthwise(const void* x, const void* w, const int32_t* neighbors,
                                          int64_t in_rows, int64_t out_rows, int64_t taps,
                                          int64_t channels, int64_t element, int64_t flags,
                                          int64_t tile, int64_t threads, void* y) {
  Depthwise p{};
  if (!ElementOf(element, &p.element) || !Countable(in_rows) || !Countable(out_rows)) {
    return kNotSupported;
  }
  p.x = x;
  p.w = w;
  p.neighbors = neighbors;
  p.y = y;
  p.in_rows = in_rows;
  p.out_rows = out_rows;
  p.taps = taps;
  p.channels = channels;
  p.reversed = flags & 2;
  p.tile = TileOf(tile, out_rows);
  p.last_cache = LastCacheBytes();
  return OnThreads(threads, [&](const Parallel& parallel, BadRow* bad) {
    const Kernels& kernels = BestKernels();
    (flags & 1 ? kernels.depthwise_weight : kernels.depthwise)(p, parallel, bad);
  });
}

// As voxax::DepthwiseGradients.
VOXAX_EXPORT int64_t voxax_host_depthwise_gradients(const void* dy, const void* x, const void* w,
                                                    const int32_t* neighbors, int64_t in_rows,
                                                    int64_t out_rows, int64_t taps, int64_t channels,
                                                    int64_t element, int64_t reversed,
                                                    int64_t threads, void* dx, void* dw) {
  DepthwiseGradients p{};
  if (!ElementOf(element, &p.element) || !Countable(in_rows) || !Countable(out_rows)) {
    return kNotSupported;
  }
  p.dy = dy;
  p.x = x;
  p.w = w;
  p.neighbors = neighbors;
  p.dx = dx;
  p.dw = dw;
  p.in_rows = in_rows;
  p.out_rows = out_rows;
  p.taps = taps;
  p.channels = channels;
  p.reversed = reversed != 0;
  p.last_cache = LastCacheBytes();
  return OnThreads(threads, [&](const Parallel& parallel, BadRow* bad) {
    BestKernels().depthwise_gradients(p, parallel, bad);
  });
}
