#include "tune_gpu.h"

#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <memory>
#include <numeric>

#include "gpu_memory.h"
#include "report.h"
#include "tune_parts.h"

namespace fsccl::perf {
namespace {

constexpr double kSampleUs = 2000, kMostCalls = 50;

// The subject of a tuning: a collective, or the gather of a unit.
struct Subject {
  std::string name;                      // the name of the operation in rules
  const CollectiveKind* kind = nullptr;  // null for the gather of a unit
};

// A unit with one parameter of `bytes` bytes, on its own pool.
class GpuUnit {
 public:
  GpuUnit(const Session& session, fsccl_comm_t comm, uint64_t bytes) {
    fsccl_pool_config_t memory = FSCCL_POOL_CONFIG_INIT;
    memory.memory = FSCCL_MEMORY_CUDA;
    memory.device = GpuMemory::device(session);
    must(fsccl_pool_create(comm, &memory, &pool_), "fsccl_pool_create");
    fsccl_param_t param = FSCCL_PARAM_INIT;
    param.dims = 1;
    param.shape[0] = static_cast<int64_t>(bytes / sizeof(float));
    param.flags = FSCCL_PARAM_FROZEN;
    fsccl_unit_config_t config = FSCCL_UNIT_CONFIG_INIT;
    config.name = "tuned";
    config.shard_comm = comm;
    config.pool = pool_;
    config.wire_dtype = FSCCL_FLOAT32;
    config.sharing = FSCCL_SHARING_PRIVATE;
    must(fsccl_unit_create(&config, &param, 1, &unit_), "fsccl_unit_create");
  }
  ~GpuUnit() {
    must(fsccl_unit_destroy(unit_), "fsccl_unit_destroy");
    must(fsccl_pool_destroy(pool_), "fsccl_pool_destroy");
  }
  GpuUnit(const GpuUnit&) = delete;
  void gather() const {
    must(fsccl_unit_unshard(unit_, FSCCL_UNSHARD_READ, nullptr, nullptr), "fsccl_unit_unshard");
    must(fsccl_unit_reshard(unit_, nullptr), "fsccl_unit_reshard");
  }

 private:
  fsccl_pool_t pool_ = nullptr;
  fsccl_unit_t unit_ = nullptr;
};

class GpuTuner {
 public:
  GpuTuner(const Session& session, const TuneOptions& options)
      : session_(session), options_(options), printing_(session.rank() == 0) {}

  GpuTuning run() {
    std::vector<Subject> subjects;
    for (const CollectiveKind* kind : options_.collectives) subjects.push_back({kind->name, kind});
    if (options_.units) subjects.push_back({kTunedUnits, nullptr});
    for (const Subject& subject : subjects) {
      points_.clear();
      open(subject);
      for (const uint64_t bytes : options_.sizes) measure(subject, bytes);
      for (size_t i = 0; i < points_.size(); i++) decide(subject, i);
      add_prices(subject);
    }
    forced_.clear();
    return std::move(made_);
  }

 private:
  struct Point {
    uint64_t bytes;
    std::string chosen;
    std::vector<Timing> timings;  // the choice, then the forced algorithms
  };

  // The algorithms of an operation that no obstacle rules out, and which of them is chosen.
  struct Algorithms {
    std::vector<std::string> names;
    std::string chosen;
  };
  Algorithms algorithms(const Subject& subject, uint64_t bytes) const {
    Algorithms found;
    const Json device = explain(forced_.front().comm(), subject.kind ? subject.name : "all_gather",
                                bytes)["device"];
    const Json& choice = subject.kind ? device["candidates"]["float32"] : device["unit"];
    for (const Json& one : choice["algorithms"]) {
      if (one.contains("obstacle")) continue;
      found.names.push_back(one["plan"].get<std::string>());
      if (one["chosen"].get<bool>()) found.chosen = found.names.back();
    }
    return found;
  }

  // Opens the communicators. The ranks of a communicator agree on what moves bytes on GPUs at its
  // first call there, so one broadcast runs before candidates are listed.
  void open(const Subject& subject) {
    forced_.clear();
    forced_.emplace_back(session_, "", subject.name);
    const GpuMemory word(session_, sizeof(float));
    must(
        fsccl_broadcast(word.data(), 1, FSCCL_FLOAT32, 0, forced_.front().comm(), nullptr, nullptr),
        "fsccl_broadcast");
    GpuMemory::wait();
    std::vector<std::string> all;
    for (const uint64_t bytes : options_.sizes)
      for (const std::string& name : algorithms(subject, bytes).names)
        if (std::find(all.begin(), all.end(), name) == all.end()) all.push_back(name);
    for (const std::string& name : all) forced_.emplace_back(session_, name, subject.name);
  }

  void measure(const Subject& subject, uint64_t bytes) {
    const bool parted = !subject.kind || subject.kind->sized_by_all();
    const Blocks blocks =
        even_blocks(session_.ranks(),
                    bytes / sizeof(float) / (parted ? static_cast<uint64_t>(session_.ranks()) : 1));
    if (blocks.counts.front() == 0) return;
    const Algorithms known = algorithms(subject, bytes);
    std::vector<const Forced*> tried{&forced_.front()};
    for (const Forced& one : forced_)
      if (std::find(known.names.begin(), known.names.end(), one.plan()) != known.names.end())
        tried.push_back(&one);
    const std::vector<std::function<void()>> calls_of = calls(subject, blocks, tried);
    const auto sample = [&](size_t i, int count) {
      const std::function<void()>& call = calls_of[i];
      call();
      GpuMemory::wait();
      session_.barrier();
      const double begin = now_us();
      for (int k = 0; k < count; k++) call();
      GpuMemory::wait();
      return (now_us() - begin) / count;
    };
    std::vector<int> counts;
    for (size_t i = 0; i < tried.size(); i++) {
      sample(i, 1);
      const double us = session_.max_over_ranks({sample(i, 1)})[0];
      counts.push_back(
          static_cast<int>(std::clamp(std::ceil(kSampleUs / std::max(us, 0.1)), 1.0, kMostCalls)));
    }
    std::vector<size_t> which(tried.size());
    std::iota(which.begin(), which.end(), size_t{0});
    points_.push_back({bytes, known.chosen,
                       time_in_turn(session_, options_.repeats, tried, which,
                                    [&](size_t i) { return sample(i, counts[i]); })});
    print(subject, points_.back());
  }

  // Returns a call for each of `tried`, which owns the memory that it uses.
  std::vector<std::function<void()>> calls(const Subject& subject, const Blocks& blocks,
                                           const std::vector<const Forced*>& tried) const {
    const uint64_t bytes = blocks.total() * sizeof(float);
    const Position place{blocks, session_.rank(), session_.ranks(), 0};
    std::shared_ptr<GpuMemory> input, output;
    if (subject.kind) {
      input = std::make_shared<GpuMemory>(session_, bytes);
      output = std::make_shared<GpuMemory>(session_, bytes);
    }
    std::vector<std::function<void()>> made;
    for (const Forced* const one : tried) {
      if (subject.kind) {
        made.emplace_back([kind = subject.kind, place, input, output, comm = one->comm()] {
          must(kind->call({place, input->data(), output->data(), FSCCL_FLOAT32, FSCCL_SUM, comm}),
               kind->name);
        });
      } else {
        made.emplace_back(
            [unit = std::make_shared<GpuUnit>(session_, one->comm(), bytes)] { unit->gather(); });
      }
    }
    return made;
  }

  static const Timing& best_of(const Point& point) {
    return *std::min_element(point.timings.begin() + 1, point.timings.end(),
                             [](const Timing& a, const Timing& b) { return a.us < b.us; });
  }
  static bool behind(const Point& point) {
    const Timing& best = best_of(point);
    return best.plan != point.chosen && better(best, point.timings.front());
  }

  void print(const Subject& subject, const Point& point) {
    made_.points++;
    made_.behind += behind(point);
    if (!printing_) return;
    const Timing &choice = point.timings.front(), &best = best_of(point);
    if (options_.json) {
      Json json{{"operation", subject.name}, {"memory", "gpu"},
                {"bytes", point.bytes},      {"chosen", point.chosen},
                {"chosen_us", choice.us},    {"best", best.plan},
                {"best_us", best.us},        {"spread_us", spread_of(choice, best)},
                {"behind", behind(point)}};
      for (size_t i = 1; i < point.timings.size(); i++)
        json["forced_us"][point.timings[i].plan] = point.timings[i].us;
      fmt::print("{}\n", json.dump());
    } else {
      fmt::print("{:<15} {:<7} {:>10}  {:<26} {:>10.2f}  {:<26} {:>10.2f} {:>9.2f}{}\n",
                 subject.name, "gpu", point.bytes, point.chosen, choice.us, best.plan, best.us,
                 spread_of(choice, best), behind(point) ? "  behind" : "");
    }
    flush_output();
  }

  std::string spread() const {
    return fmt::format("{}x{}", session_.hosts(), session_.ranks() / session_.hosts());
  }

  // Adds a rule if the choice is behind. The rule holds from this size to the next one.
  void decide(const Subject& subject, size_t at) {
    const Point& point = points_[at];
    if (!behind(point)) return;
    const uint64_t to = at + 1 == points_.size() ? point.bytes : points_[at + 1].bytes - 1;
    made_.rules.push_back(fmt::format("{}@{}:{}-{}={}", subject.name, spread(), point.bytes, to,
                                      best_of(point).plan));
  }

  // Keeps the time of each algorithm at each size, as prices for the chooser.
  void add_prices(const Subject& subject) {
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
          {"operation", subject.name},
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
  std::vector<Forced> forced_;  // the one without a forced algorithm comes first
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
