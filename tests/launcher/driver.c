// The part of CUDA's driver that JAX's launcher of Triton kernels calls, for machines without a GPU.
//
// Nothing runs: a launch calls back with its grid and the addresses of its arguments. Device memory
// is the host's. An attribute that is not listed is 0.

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int Result;
typedef void (*Launched)(unsigned blocks, unsigned threads, unsigned shared, void **arguments);

enum { OK = 0, INVALID_VALUE = 1 };
enum { CAPABILITY_MAJOR = 75, CAPABILITY_MINOR = 76, SHARED_OF_CORE = 81, SHARED_OPT_IN = 97 };

static Launched launched;
static int capability, shared_of_block, device;

// What the stand-in is: a compute capability as 80, bytes of shared memory, whom launches call.
void stand_in(int capability_, int shared, Launched callback) {
  capability = capability_;
  shared_of_block = shared;
  launched = callback;
}

Result cuInit(unsigned flags) { return (void)flags, OK; }
Result cuDriverGetVersion(int *version) { return *version = 13000, OK; }
Result cuDeviceGet(int *result, int ordinal) { return *result = ordinal, OK; }
Result cuDeviceGetCount(int *count) { return *count = 1, OK; }
Result cuDeviceGetAttribute(int *value, int attribute, int which) {
  (void)which;
  switch (attribute) {
    case CAPABILITY_MAJOR: *value = capability / 10; break;
    case CAPABILITY_MINOR: *value = capability % 10; break;
    case SHARED_OPT_IN: *value = shared_of_block; break;
    case SHARED_OF_CORE: *value = shared_of_block + 1024; break;
    default: *value = 0;
  }
  return OK;
}

Result cuCtxGetDevice(int *result) { return *result = device, OK; }
Result cuCtxGetCurrent(void **context) { return *context = &device, OK; }
Result cuCtxSetCurrent(void *context) { return (void)context, OK; }
Result cuCtxPushCurrent(void *context) { return (void)context, OK; }
Result cuCtxPushCurrent_v2(void *context) { return (void)context, OK; }
Result cuCtxPopCurrent_v2(void **context) {
  if (context) *context = &device;
  return OK;
}
Result cuCtxPopCurrent(void **context) { return cuCtxPopCurrent_v2(context); }
Result cuStreamGetCtx(void *stream, void **context) { return (void)stream, *context = &device, OK; }
Result cuStreamGetCtx_v2(void *stream, void **context, void **green) {
  return (void)stream, *green = NULL, *context = &device, OK;
}
Result cuStreamIsCapturing(void *stream, int *status) { return (void)stream, *status = 0, OK; }

Result cuModuleLoadData(void **module, const void *image) {
  return *module = (void *)image, image ? OK : INVALID_VALUE;
}
Result cuModuleLoadDataEx(void **module, const void *image, unsigned n, void *names, void *values) {
  return (void)n, (void)names, (void)values, cuModuleLoadData(module, image);
}
Result cuModuleUnload(void *module) { return (void)module, OK; }
Result cuModuleGetFunction(void **function, void *module, const char *name) {
  return *function = module, name ? OK : INVALID_VALUE;
}
Result cuFuncSetCacheConfig(void *function, int config) { return (void)function, (void)config, OK; }
Result cuFuncGetAttribute(int *value, int attribute, void *function) {
  return (void)attribute, (void)function, *value = 0, OK;
}
// Shared memory beyond the default has to be asked for; a GPU refuses more than it has.
Result cuFuncSetAttribute(void *function, int attribute, int value) {
  return (void)function, (void)attribute, value > shared_of_block ? INVALID_VALUE : OK;
}

Result cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                      unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                      void *stream, void **arguments, void **more) {
  (void)stream, (void)more;
  if (!function || grid_y != 1 || grid_z != 1 || block_y != 1 || block_z != 1) return INVALID_VALUE;
  launched(grid_x, block_x, shared, arguments);
  return OK;
}
struct Launch {
  unsigned grid[3], block[3], shared;
  void *stream, *attributes;
  unsigned number;
};
Result cuLaunchKernelEx(const struct Launch *launch, void *function, void **arguments, void **more) {
  return cuLaunchKernel(function, launch->grid[0], launch->grid[1], launch->grid[2],
                        launch->block[0], launch->block[1], launch->block[2], launch->shared,
                        launch->stream, arguments, more);
}

Result cuGetErrorName(Result result, const char **text) { return *text = result ? "refused" : "ok", OK; }
Result cuGetErrorString(Result result, const char **text) { return cuGetErrorName(result, text); }
Result cuMemsetD8Async(uint64_t to, unsigned char value, size_t size, void *stream) {
  return (void)stream, memset((void *)to, value, size), OK;
}
Result cuMemAllocAsync(uint64_t *memory, size_t size, void *stream) {
  return (void)stream, *memory = (uint64_t)malloc(size), OK;
}
Result cuMemFreeAsync(uint64_t memory, void *stream) {
  return (void)stream, free((void *)memory), OK;
}
