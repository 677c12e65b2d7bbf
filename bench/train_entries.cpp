#include <fmt/format.h>

#include <algorithm>

#include "base/buffer.h"
#include "bench/suite_internal.h"
#include "kernels/gemm.h"

// Products of two computed matrices, as training has them.

namespace tidepool::bench {

namespace {

/// c [m, n] = a [m, k] b [k, n].
struct ProductShape {
  size_t m;
  size_t k;
  size_t n;
};

/// The three products of a linear layer of `shape`, each packed anew as in training: forward y = x W^T, and the
/// gradients dx = dy W and dW = dy^T x. They are `rounds` times the same work, so that a call lasts some milliseconds.
Result measure_products(const Workbench& bench, ProductShape shape, size_t rounds) {
  // The kernel that goes with the bench's table, where there is one; that of the best table multiplies in bfloat16.
  const auto kernels = kernels::available_gemm_kernels();
  const auto found = std::find_if(kernels.begin(), kernels.end(),
                                  [&](const kernels::GemmKernel* kernel) { return kernel->name == bench.table.name; });
  const kernels::GemmKernel& kernel = found == kernels.end() ? *kernels.back() : **found;
  Buffer<float> x(shape.m * shape.k);
  Buffer<float> weight(shape.n * shape.k);
  Buffer<float> y(shape.m * shape.n);
  for (Buffer<float>* const buffer : {&x, &weight, &y})
    std::generate(buffer->span().begin(), buffer->span().end(),
                  [i = 0]() mutable { return static_cast<float>(i++ % 17 - 8) / 8.0F; });
  Buffer<float> dx(x.size());
  Buffer<float> dweight(weight.size());
  Buffer<float> out(y.size());
  const kernels::GemmOperand x_factor{{x.data(), shape.m, shape.k}};
  const kernels::GemmOperand weight_factor{{weight.data(), shape.n, shape.k}};
  const kernels::GemmOperand dy_factor{{y.data(), shape.m, shape.n}};
  const auto turned = [](kernels::GemmOperand factor) {
    factor.is_transposed = true;
    return factor;
  };
  const kernels::GemmJob jobs[] = {{x_factor, turned(weight_factor), {out.data(), shape.m, shape.n}},
                                   {dy_factor, weight_factor, {dx.data(), shape.m, shape.k}, true},
                                   {turned(dy_factor), x_factor, {dweight.data(), shape.n, shape.k}, true}};
  kernels::GemmWorkspace workspace;
  const auto run = [&] {
    for (size_t i = 0; i < rounds; ++i) {
      for (const kernels::GemmJob& job : jobs)
        kernels::multiply_all(bench.pool, kernel, {&job, 1}, workspace);
    }
  };
  const double operations = 6.0 * static_cast<double>(rounds * shape.m * shape.k * shape.n);
  // Each of the three matrices is read twice and written once; in a round that lies in a cache, memory sees less.
  const double bytes = 3.0 * static_cast<double>(rounds * sizeof(float) * (x.size() + weight.size() + y.size()));
  return against_peak(bench, {.shape = fmt::format("x [{},{}], w [{},{}], forward and both gradients", shape.m, shape.k,
                                                   shape.n, shape.k),
                              .bytes = bytes,
                              .operations = operations,
                              .run = run});
}

}  // namespace

std::vector<Entry> train_entries() {
  return {{"train_gemm",
           [](const Workbench& bench) {
             return measure_products(bench, {2048, 512, 512}, 2);
           }},
          {"train_gemm_small", [](const Workbench& bench) {
             return measure_products(bench, {2048, 128, 64}, 20);
           }}};
}

}  // namespace tidepool::bench
