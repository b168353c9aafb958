#include "step_codec.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "fsccl/codec.h"
#include "fsccl/insight.h"
#include "numbers.h"
#include "step_unit.h"

namespace fsccl::perf {
namespace {

constexpr size_t kVariants = 3;  // plain, kept, with the codec

const char* name_of(fsccl_codec_kind_t kind) {
  return kind == FSCCL_CODEC_INT8    ? "int8"
         : kind == FSCCL_CODEC_FP8   ? "fp8"
         : kind == FSCCL_CODEC_MXFP8 ? "mxfp8"
                                     : "delta";
}

struct Variant {
  StepOptions options;
  std::vector<std::unique_ptr<StepUnit>> units;
  std::vector<double> gathers_us, step_us;  // by measured step
};

class CodecRunner {
 public:
  CodecRunner(Session& session, const Model& model, const StepOptions& options)
      : session_(session), options_(options) {
    // Each way has its own shards and their gradients, in fp32, and one keeps what it gathered.
    const uint64_t bytes_of_element =
        kVariants * 2 * sizeof(float) + fsccl_dtype_size(options.wire);
    session.must_fit(
        model.elements() * bytes_of_element / static_cast<uint64_t>(session.hosts()),
        fmt::format("shards and gradients of {}, three times, and a kept copy", model.name),
        "use more hosts, or fewer --layers");
    session.open_pool(false, 0);
    for (size_t v = 0; v < kVariants; v++) {
      Variant& variant = variants_[v];
      variant.options = options;
      variant.options.drifts = true;
      variant.options.gradient_slots = true;
      variant.options.keep = v == 1 ? FSCCL_KEEP_ALWAYS : FSCCL_KEEP_NONE;
      variant.options.codec = v == 2 ? options.codec : FSCCL_CODEC_NONE;
      const uint64_t before = live_bytes();
      for (size_t u = 0; u < model.units.size(); u++)
        variant.units.push_back(std::make_unique<StepUnit>(session, model.units[u], u, false,
                                                           variant.options, nullptr));
      state_bytes_ = session.sum_over_ranks(live_bytes() - before);  // the codec's come last
    }
    elements_ = model.elements();
  }

  uint64_t run() {
    uint64_t wrong = 0;
    for (int s = -options_.warmup; s < options_.steps; s++) {
      if (s == 0) before_ = sums();
      for (size_t k = 0; k < kVariants; k++) {
        Variant& variant = variants_[(k + static_cast<size_t>(s + options_.warmup)) % kVariants];
        wrong += step(variant, s >= 0);
      }
    }
    const std::array<double, 2> after = sums();
    print(after);
    return session_.sum_over_ranks(wrong);
  }

 private:
  uint64_t live_bytes() const {
    fsccl_pool_stats_t stats = FSCCL_POOL_STATS_INIT;
    must(fsccl_pool_stats(session_.pool(), &stats), "fsccl_pool_stats");
    return stats.local_live_bytes;
  }

  // Runs a step. Forward gathers all units; backward gathers them again in the reverse order and
  // reduces their gradients. Each unit is given back after its use.
  uint64_t step(Variant& variant, bool measured) {
    const uint32_t generation = ++generation_;
    double gathers = 0, whole = 0;
    uint64_t wrong = 0;
    for (auto& unit : variant.units) unit->write_shards(generation);
    session_.barrier();
    const auto clocked = [&](double* sum, auto&& act) {
      const double begin = now_us();
      act();
      const double spent = now_us() - begin;
      *sum += spent;
      if (sum != &whole) whole += spent;
    };
    for (auto& unit : variant.units) {
      clocked(&gathers, [&] { unit->unshard(nullptr); });
      wrong += unit->look(generation);
      clocked(&whole, [&] { unit->reshard(); });
    }
    for (size_t u = variant.units.size(); u-- > 0;) {
      StepUnit& unit = *variant.units[u];
      clocked(&gathers, [&] { unit.unshard(nullptr); });
      clocked(&whole, [&] { unit.take_gradients(); });
      unit.write_gradients(generation);
      session_.barrier();
      clocked(&whole, [&] { unit.reshard(), unit.reduce(); });
    }
    must(fsccl_pool_step(session_.pool()), "fsccl_pool_step");
    if (measured) variant.gathers_us.push_back(gathers), variant.step_us.push_back(whole);
    return wrong;
  }

  // Returns the codec's bytes over all ranks: plain, sent.
  std::array<double, 2> sums() const {
    std::vector<double> values(2);
    for (const auto& unit : variants_[2].units) {
      fsccl_codec_report_t report = FSCCL_CODEC_REPORT_INIT;
      must(fsccl_unit_codec(unit->handle(), &report), "fsccl_unit_codec");
      values[0] += static_cast<double>(report.plain_bytes);
      values[1] += static_cast<double>(report.sent_bytes);
    }
    values = session_.sum_over_ranks(values);
    return {values[0], values[1]};
  }

  void print(const std::array<double, 2>& after) const {
    const double plain_bytes = after[0] - before_[0], sent_bytes = after[1] - before_[1];
    const double fewer = sent_bytes > 0 ? plain_bytes / sent_bytes : 1;
    double first = 0;
    if (session_.rank() == 0 && !options_.json)
      fmt::print("{:12} {:>14} {:>10} {:>14} {:>12} {:>22}\n", "gathers", "median us", "speed-up",
                 "whole step us", "fewer bytes", "state, B/param. & host");
    for (size_t v = 0; v < kVariants; v++) {
      const double gathers = percentile(session_.max_over_ranks(variants_[v].gathers_us), 0.5);
      const double whole = percentile(session_.max_over_ranks(variants_[v].step_us), 0.5);
      if (v == 0) first = gathers;
      const double wire = static_cast<double>(fsccl_dtype_size(options_.wire));
      const double state = v == 0   ? 0
                           : v == 1 ? wire
                                    : static_cast<double>(state_bytes_) / session_.hosts() /
                                          static_cast<double>(elements_);
      const double bytes = v == 2 ? fewer : v == 1 ? 2.0 : 1.0;
      if (session_.rank() == 0 && options_.json)
        fmt::print(R"({{"gathers":"{}","median_us":{:.1f},"step_us":{:.1f},"fewer_bytes":{:.3f},)"
                   R"("state":{:.3f}}}{})",
                   variant_name(v), gathers, whole, bytes, state, "\n");
      else if (session_.rank() == 0)
        fmt::print("{:12} {:>14.0f} {:>10.2f} {:>14.0f} {:>12.2f} {:>22.2f}\n", variant_name(v),
                   gathers, first / gathers, whole, bytes, state);
    }
    report_declined();
  }

  const char* variant_name(size_t v) const {
    return v == 0 ? "plain" : v == 1 ? "keep plain" : name_of(options_.codec);
  }

  void report_declined() const {
    double declined = 0, gathers = 0, error = 0;
    for (const auto& unit : variants_[2].units) {
      fsccl_codec_report_t report = FSCCL_CODEC_REPORT_INIT;
      must(fsccl_unit_codec(unit->handle(), &report), "fsccl_unit_codec");
      declined += static_cast<double>(report.declined);
      gathers += static_cast<double>(report.gathers);
      error = std::max(error, report.max_error);
    }
    if (session_.rank() == 0 && !options_.json)
      fmt::print("the codec declined {:.0f} of {:.0f} gathers\n", declined, gathers);
    if (session_.rank() == 0 && !options_.json && error > 0)
      fmt::print("the largest error of a block was {:.5f} of its largest element\n", error);
  }

  Session& session_;
  const StepOptions options_;
  std::array<Variant, kVariants> variants_;
  std::array<double, 2> before_{};
  uint64_t state_bytes_ = 0;  // bytes that the codec has in the pools of all ranks
  uint64_t elements_ = 0;
  uint32_t generation_ = 0;
};

}  // namespace

uint64_t run_step_codec(Session& session, const Model& model, const StepOptions& options) {
  return CodecRunner(session, model, options).run();
}

}  // namespace fsccl::perf
