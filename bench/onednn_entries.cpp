#include <omp.h>

#include <chrono>
#include <dnnl.hpp>
#include <thread>
#include <vector>

#include "bench/suite_internal.h"
#include "formats/bf16.h"

// A yardstick, built where oneDNN is installed: its product of bfloat16 matrices, weights packed beforehand as it likes
// them best, beside ours, which reads FP8.

namespace tidepool::bench {

namespace {

constexpr size_t kRows = 512;

/// y [rows, out] = x [rows, in] w [in, out], all set up but for the call.
class OneDnnProduct {
 public:
  OneDnnProduct(const dnnl::engine& engine, dnnl::stream& stream, int64_t in, int64_t out) : stream_(stream) {
    using Tag = dnnl::memory::format_tag;
    using Type = dnnl::memory::data_type;
    const auto rows = static_cast<int64_t>(kRows);
    const dnnl::memory::desc x({rows, in}, Type::bf16, Tag::ab);
    const dnnl::memory::desc any({in, out}, Type::bf16, Tag::any);
    const dnnl::memory::desc y({rows, out}, Type::f32, Tag::ab);
    const dnnl::matmul::primitive_desc plan(dnnl::matmul::desc(x, any, y), engine);
    product_ = dnnl::matmul(plan);
    const dnnl::memory packed(plan.weights_desc(), engine);
    {
      dnnl::memory plain({{in, out}, Type::bf16, Tag::ab}, engine);
      auto* values = static_cast<Bf16*>(plain.get_data_handle());
      for (int64_t i = 0; i < in * out; ++i)
        values[i] = to_bf16(static_cast<float>(i % 251 - 125) / 128.0F);
      dnnl::reorder(plain, packed).execute(stream_, plain, const_cast<dnnl::memory&>(packed));
      stream_.wait();
    }
    const dnnl::memory input(x, engine);
    auto* values = static_cast<Bf16*>(input.get_data_handle());
    for (int64_t i = 0; i < rows * in; ++i)
      values[i] = to_bf16(static_cast<float>(i % 17 - 8) / 8.0F);
    arguments_ = {{DNNL_ARG_SRC, input}, {DNNL_ARG_WEIGHTS, packed}, {DNNL_ARG_DST, dnnl::memory(y, engine)}};
  }

  void run() {
    product_.execute(stream_, arguments_);
    stream_.wait();
  }

 private:
  dnnl::stream& stream_;
  dnnl::matmul product_;
  std::unordered_map<int, dnnl::memory> arguments_;
};

/// Seconds of one call, begun when what ran before has gone to sleep: OpenMP's workers spin for some milliseconds
/// behind a parallel region, on a core that what comes next needs. (Right behind oneDNN 3 ms of arithmetic on both
/// cores took a third longer.)
double seconds_undisturbed(const std::function<void()>& work) {
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  return seconds_of(work);
}

Result dense_against_onednn(const Workbench& bench) {
  omp_set_num_threads(static_cast<int>(bench.pool.thread_count()));
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  OneDnnProduct square(engine, stream, 5120, 5120);
  OneDnnProduct wide(engine, stream, 5120, 32768);
  const Work ours = dense_n512_work(bench);
  const auto theirs = [&] {
    square.run();
    wide.run();
  };
  ours.run();
  theirs();
  std::vector<double> seconds;
  std::vector<double> their_seconds;
  std::vector<double> ratios;
  for (int i = 0; i < ours.repeats; ++i) {
    seconds.push_back(seconds_undisturbed(ours.run));
    their_seconds.push_back(seconds_undisturbed(theirs));
    ratios.push_back(their_seconds.back() / seconds.back());
  }
  Result result;
  result.shape = ours.shape + ", beside oneDNN's bfloat16 product of these shapes";
  result.median = ours.operations / median(seconds) / 1e9;
  result.unit = "GFLOP/s";
  result.limit = "onednn_gflops";
  result.limit_value = ours.operations / median(their_seconds) / 1e9;
  result.share = median(ratios);
  return result;
}

}  // namespace

std::vector<Entry> yardstick_entries() {
  return {{"fp8_dense_n512_vs_onednn", dense_against_onednn}};
}

}  // namespace tidepool::bench
