// The functions on normalization that XLA calls: checks of shapes, then the work.
#include "handler.h"
#include "kernels.h"

namespace voxax {
namespace {

using Wide = ffi::AnyBuffer;  // in the type of the sums

// One value for each channel, in the type of the sums.
bool Fits(const ffi::AnyBuffer& buffer, ffi::DataType dtype, int64_t channels) {
  return buffer.element_type() == dtype && HasShape(buffer.dimensions(), {channels});
}

// Rows that may be left out: [rows, channels], or [0, channels].
bool IsOptional(const ffi::AnyBuffer& buffer, ffi::DataType dtype, int64_t rows,
                int64_t channels) {
  return buffer.element_type() == dtype && (HasShape(buffer.dimensions(), {rows, channels}) ||
                                            HasShape(buffer.dimensions(), {0, channels}));
}

ffi::Error Mismatch() {
  return Invalid(
      "features [N, C] of float32, float64 or bfloat16, others of theirs, valid [N]; per channel [C] "
      "of float32, or float64 with features of it");
}

ffi::DataType SumsOf(ffi::DataType dtype) {
  return dtype == ffi::DataType::F64 ? dtype : ffi::DataType::F32;
}

ffi::Error RunBatchNormCall(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::Buffer<ffi::PRED> valid,
                            Wide scale, Wide bias, ffi::AnyBuffer residual, Wide old_mean,
                            Wide old_variance, ffi::Result<ffi::AnyBuffer> y,
                            ffi::Result<Wide> mean, ffi::Result<Wide> inverse,
                            ffi::Result<Wide> new_mean, ffi::Result<Wide> new_variance,
                            double momentum, double epsilon, bool training, bool relu) {
  BatchNorm p{};
  const auto dtype = x.element_type();
  if (!ElementOf(dtype, &p.element) || x.dimensions().size() != 2) return Mismatch();
  p.rows = x.dimensions()[0];
  p.channels = x.dimensions()[1];
  bool fits = HasShape(valid.dimensions(), {p.rows}) && y->element_type() == dtype &&
              HasShape(y->dimensions(), {p.rows, p.channels}) &&
              IsOptional(residual, dtype, p.rows, p.channels);
  for (const ffi::AnyBuffer& each :
       {scale, bias, old_mean, old_variance, *mean, *inverse, *new_mean, *new_variance}) {
    fits = fits && Fits(each, SumsOf(dtype), p.channels);
  }
  if (!fits) return Mismatch();
  p.x = x.untyped_data();
  p.valid = valid.typed_data();
  p.residual = residual.dimensions()[0] == 0 ? nullptr : residual.untyped_data();
  p.scale = scale.untyped_data();
  p.bias = bias.untyped_data();
  p.old_mean = old_mean.untyped_data();
  p.old_variance = old_variance.untyped_data();
  p.momentum = momentum;
  p.epsilon = epsilon;
  p.training = training;
  p.relu = relu;
  p.y = Written(*y);
  p.mean = mean->untyped_data();
  p.inverse = inverse->untyped_data();
  p.new_mean = new_mean->untyped_data();
  p.new_variance = new_variance->untyped_data();
  return OnPool(pool, [&](const Parallel& parallel) {
    BestKernels().batch_norm(p, parallel, nullptr);
  });
}

ffi::Error RunBatchNormGradientsCall(ffi::ThreadPool pool, ffi::AnyBuffer dy, ffi::AnyBuffer x,
                                     ffi::AnyBuffer y, ffi::Buffer<ffi::PRED> valid, Wide mean,
                                     Wide inverse, Wide scale, ffi::Result<ffi::AnyBuffer> dx,
                                     ffi::Result<ffi::AnyBuffer> dresidual,
                                     ffi::Result<Wide> dscale, ffi::Result<Wide> dbias,
                                     bool training, bool relu) {
  BatchNormGradients p{};
  const auto dtype = x.element_type();
  if (!ElementOf(dtype, &p.element) || x.dimensions().size() != 2) return Mismatch();
  p.rows = x.dimensions()[0];
  p.channels = x.dimensions()[1];
  bool fits = HasShape(valid.dimensions(), {p.rows}) &&
              IsOptional(y, dtype, p.rows, p.channels) &&
              IsOptional(*dresidual, dtype, p.rows, p.channels);
  for (const ffi::AnyBuffer& each : {dy, *dx}) {
    fits = fits && each.element_type() == dtype &&
           HasShape(each.dimensions(), {p.rows, p.channels});
  }
  for (const ffi::AnyBuffer& each : {mean, inverse, scale, *dscale, *dbias}) {
    fits = fits && Fits(each, SumsOf(dtype), p.channels);
  }
  if (!fits || (relu && y.dimensions()[0] != p.rows)) return Mismatch();
  p.dy = dy.untyped_data();
  p.x = x.untyped_data();
  p.y = y.untyped_data();
  p.valid = valid.typed_data();
  p.mean = mean.untyped_data();
  p.inverse = inverse.untyped_data();
  p.scale = scale.untyped_data();
  p.training = training;
  p.relu = relu;
  p.dx = Written(*dx);
  p.dresidual = dresidual->dimensions()[0] == 0 ? nullptr : Written(*dresidual);
  p.dscale = dscale->untyped_data();
  p.dbias = dbias->untyped_data();
  return OnPool(pool, [&](const Parallel& parallel) {
    BestKernels().batch_norm_gradients(p, parallel, nullptr);
  });
}

}  // namespace
}  // namespace voxax

extern "C" VOXAX_EXPORT XLA_FFI_Error* voxax_batch_norm(XLA_FFI_CallFrame*);
extern "C" VOXAX_EXPORT XLA_FFI_Error* voxax_batch_norm_gradients(XLA_FFI_CallFrame*);

XLA_FFI_DEFINE_HANDLER_SYMBOL(voxax_batch_norm, voxax::RunBatchNormCall,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::PRED>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<double>("momentum")
                                  .Attr<double>("epsilon")
                                  .Attr<bool>("training")
                                  .Attr<bool>("relu"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(voxax_batch_norm_gradients, voxax::RunBatchNormGradientsCall,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::PRED>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<bool>("training")
                                  .Attr<bool>("relu"));
