#include "tune_gpu.h"

#include <fmt/format.h>

#include <cmath>
#include <numeric>

#include "gpu_memory.h"
#include "report.h"
#include "tune_parts.h"

namespace fsccl::perf {
namespace {

constexpr double kSampleUs = 2000, kMostCalls = 50;

class GpuTuner {
 public:
  GpuTuner(const Session& session, const TuneOptions& options)
      : session_(session), options_(options), printing_(session.rank() == 0) {}

  GpuTuning run() {
    for (const CollectiveKind* kind : options_.collectives) {
      points_.clear();
      open(*kind);
      for (const uint64_t bytes : options_.sizes) measure(*kind, bytes);
      for (size_t i = 0; i < points_.size(); i++) decide(*kind, i);
      add_prices(*kind);
    }
    forced_.clear();
    return std::move(made_);
  }

 private:
  struct Point {
    uint64_t bytes;
    std::string chosen;
    std::vector<Timing> timings;  // the choice, then the forced ways
  };

  // The ways of an operation that may be taken, of which one is chosen.
  struct Ways {
    std::vector<std::string> names;
    std::string chosen;
  };
  Ways ways(const CollectiveKind& kind, uint64_t bytes) const {
    Ways found;
    const Json answer = explain(forced_.front().comm(), kind.name, bytes);
    for (const Json& one : answer["device"]["candidates"]["float32"]["algorithms"]) {
      if (one.contains("obstacle")) continue;
      found.names.push_back(one["plan"].get<std::string>());
      if (one["chosen"].get<bool>()) found.chosen = found.names.back();
    }
    return found;
  }

  // A communicator agrees what moves bytes on GPUs at its first call there.
  void open(const CollectiveKind& kind) {
    forced_.clear();
    forced_.emplace_back(session_, "", kind.name);
    const GpuMemory word(session_, sizeof(float));
    must(
        fsccl_broadcast(word.data(), 1, FSCCL_FLOAT32, 0, forced_.front().comm(), nullptr, nullptr),
        "fsccl_broadcast");
    GpuMemory::wait();
    std::vector<std::string> all;
    for (const uint64_t bytes : options_.sizes)
      for (const std::string& way : ways(kind, bytes).names)
        if (std::find(all.begin(), all.end(), way) == all.end()) all.push_back(way);
    for (const std::string& way : all) forced_.emplace_back(session_, way, kind.name);
  }

  void measure(const CollectiveKind& kind, uint64_t bytes) {
    const uint64_t parts = kind.sized_by_all() ? static_cast<uint64_t>(session_.ranks()) : 1;
    const Blocks blocks = even_blocks(session_.ranks(), bytes / sizeof(float) / parts);
    if (blocks.counts.front() == 0) return;
    const Position place{blocks, session_.rank(), session_.ranks(), 0};
    const Ways known = ways(kind, bytes);
    std::vector<const Forced*> tried{&forced_.front()};
    for (const Forced& one : forced_)
      if (std::find(known.names.begin(), known.names.end(), one.plan()) != known.names.end())
        tried.push_back(&one);
    const uint64_t room = blocks.total() * sizeof(float);
    const GpuMemory input(session_, room), output(session_, room);
    const auto sample = [&](const Forced& one, int calls) {
      const auto call = [&] {
        must(kind.call({place, input.data(), output.data(), FSCCL_FLOAT32, FSCCL_SUM, one.comm()}),
             kind.name);
      };
      call();
      GpuMemory::wait();
      session_.barrier();
      const double begin = now_us();
      for (int i = 0; i < calls; i++) call();
      GpuMemory::wait();
      return (now_us() - begin) / calls;
    };
    std::vector<int> calls;
    for (const Forced* one : tried) {
      sample(*one, 1);
      const double us = session_.max_over_ranks({sample(*one, 1)})[0];
      calls.push_back(
          static_cast<int>(std::clamp(std::ceil(kSampleUs / std::max(us, 0.1)), 1.0, kMostCalls)));
    }
    std::vector<size_t> which(tried.size());
    std::iota(which.begin(), which.end(), size_t{0});
    points_.push_back({bytes, known.chosen,
                       time_in_turn(session_, options_.repeats, tried, which,
                                    [&](size_t i) { return sample(*tried[i], calls[i]); })});
    print(kind, points_.back());
  }

  static const Timing& best_of(const Point& point) {
    return *std::min_element(point.timings.begin() + 1, point.timings.end(),
                             [](const Timing& a, const Timing& b) { return a.us < b.us; });
  }
  static bool behind(const Point& point) {
    const Timing& best = best_of(point);
    return best.plan != point.chosen && better(best, point.timings.front());
  }

  void print(const CollectiveKind& kind, const Point& point) {
    made_.points++;
    made_.behind += behind(point);
    if (!printing_) return;
    const Timing &choice = point.timings.front(), &best = best_of(point);
    if (options_.json) {
      Json json{{"operation", kind.name}, {"memory", "gpu"},
                {"bytes", point.bytes},   {"chosen", point.chosen},
                {"chosen_us", choice.us}, {"best", best.plan},
                {"best_us", best.us},     {"spread_us", spread_of(choice, best)},
                {"behind", behind(point)}};
      for (size_t i = 1; i < point.timings.size(); i++)
        json["forced_us"][point.timings[i].plan] = point.timings[i].us;
      fmt::print("{}\n", json.dump());
    } else {
      fmt::print("{:<15} {:<7} {:>10}  {:<26} {:>10.2f}  {:<26} {:>10.2f} {:>9.2f}{}\n", kind.name,
                 "gpu", point.bytes, point.chosen, choice.us, best.plan, best.us,
                 spread_of(choice, best), behind(point) ? "  behind" : "");
    }
    flush_output();
  }

  std::string spread() const {
    return fmt::format("{}x{}", session_.hosts(), session_.ranks() / session_.hosts());
  }

  // A rule from this size to the next.
  void decide(const CollectiveKind& kind, size_t at) {
    const Point& point = points_[at];
    if (!behind(point)) return;
    const uint64_t to = at + 1 == points_.size() ? point.bytes : points_[at + 1].bytes - 1;
    made_.rules.push_back(
        fmt::format("{}@{}:{}-{}={}", kind.name, spread(), point.bytes, to, best_of(point).plan));
  }

  // Keeps the time of each way at each size, for the chooser.
  void add_prices(const CollectiveKind& kind) {
    for (size_t i = 1; i < forced_.size(); i++) {
      const std::string& way = forced_[i].plan();
      Json sizes = Json::array(), ns = Json::array();
      for (const Point& point : points_)
        for (size_t t = 1; t < point.timings.size(); t++)
          if (point.timings[t].plan == way) {
            sizes.push_back(point.bytes);
            ns.push_back(std::round(point.timings[t].us * 1000));
          }
      if (sizes.empty()) continue;
      made_.prices.push_back(Json{
          {"operation", kind.name},
          {"hosts", session_.hosts()},
          {"ranks_per_host", session_.ranks() / session_.hosts()},
          {"algorithm", way},
          {"sizes", sizes},
          {"ns", ns}}.dump());
    }
  }

  const Session& session_;
  const TuneOptions& options_;
  const bool printing_;
  std::vector<Forced> forced_;  // the free choice first
  std::vector<Point> points_;
  GpuTuning made_;
};

}  // namespace

GpuTuning tune_gpu(const Session& session, const TuneOptions& options) {
  const std::string why = why_no_gpu();
  if (!why.empty()) fmt::print(stderr, "fsccl-perf: rank {}: no GPU: {}\n", session.rank(), why);
  session.end_where(!why.empty(), 1);
  return GpuTuner(session, options).run();
}

}  // namespace fsccl::perf
