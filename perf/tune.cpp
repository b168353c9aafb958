#include "tune.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "base/program.h"
#include "fsccl/insight.h"
#include "numbers.h"
#include "report.h"
#include "tune_gpu.h"
#include "tune_parts.h"

namespace fsccl::perf {
namespace {

constexpr double kTuneSampleUs = 200, kMostTuneCalls = 200;

struct Point {
  const CollectiveKind* kind;
  Memory memory;
  uint64_t bytes;
  std::string chosen;           // the plan, as fsccl_explain names it
  Timing choice, best;          // `best` is `choice` if no forced plan is faster
  std::vector<Timing> timings;  // times of the forced plans
  double spread() const { return spread_of(choice, best); }
  // Returns true if another plan than the chosen one is better. The chosen plan itself may be
  // faster when it is forced, only because no rank asks then where the buffers lie
  // (select/select.cpp).
  bool behind() const { return best.plan != chosen && better(best, choice); }
};

class Tuner {
 public:
  Tuner(const Session& session, const TuneOptions& options)
      : session_(session), options_(options), printing_(session.rank() == 0) {}

  void run() {
    session_.end_where(printing_ && !writable(), 2);
    if (session_.uneven_hosts() && printing_)
      fmt::print(stderr,
                 "fsccl-perf: tune: hosts have different numbers of ranks, and rules are for hosts "
                 "that have the same: start as many on each\n");
    session_.end_where(session_.uneven_hosts(), 2);
    if (session_.shares_cores() && printing_)
      fmt::print(
          stderr,
          "fsccl-perf: tune: ranks share cores, so the times are those of the scheduler, and "
          "rules from them are of no use where ranks have their own: start fewer ranks\n");
    const uint64_t largest = options_.sizes.back();
    session_.must_fit(2 * largest * static_cast<uint64_t>(session_.ranks()) /
                          static_cast<uint64_t>(session_.hosts()),
                      fmt::format("two buffers of {} a rank", format_bytes(largest)),
                      "give a smaller --maxbytes, or fewer ranks");
    if (printing_ && !options_.json)
      fmt::print(
          "# {} ranks on {} hosts, {} repeats\n{:<15} {:<7} {:>10}  {:<26} {:>10}  {:<26} {:>10} "
          "{:>9}\n",
          session_.ranks(), session_.hosts(), options_.repeats, "operation", "memory", "bytes",
          "chosen", "us", "best", "us", "spread");
    uint64_t behind = 0;
    for (const CollectiveKind* kind : options_.collectives) {
      if (options_.memories.empty()) break;
      open(*kind);
      for (const uint64_t bytes : options_.sizes) {
        std::vector<Point> points;
        for (const Memory memory : options_.memories)
          if (std::optional<Point> point = measure(*kind, memory, bytes))
            points.push_back(std::move(*point));
        for (const Point& point : points) {
          behind += point.behind();
          print(point);
        }
        decide(*kind, bytes, points);
      }
    }
    forced_.clear();
    if (options_.gpu) {
      GpuTuning gpu = tune_gpu(session_, options_);
      points_ += gpu.points, behind += gpu.behind;
      rules_.insert(rules_.end(), gpu.rules.begin(), gpu.rules.end());
      prices_ = std::move(gpu.prices);
    }
    if (printing_ && !options_.json)
      fmt::print("# the choice is behind the best by more than the spread at {} of {} points\n",
                 behind, points_);
    if (!options_.output.empty()) session_.end_where(!write(), 1);
    if (printing_) flush_output();
  }

 private:
  // Checks the file before the measurements. An existing file stays as it is.
  bool writable() {
    if (options_.output.empty()) return true;
    return is_well(output_.open(options_.output));
  }
  static bool is_well(const Status& status) {
    if (!status.ok()) fmt::print(stderr, "fsccl-perf: {}\n", status.text());
    return status.ok();
  }

  // Opens a communicator without a forced plan, and one for each plan that is a candidate at any of
  // the sizes.
  void open(const CollectiveKind& kind) {
    forced_.clear();
    forced_.emplace_back(session_, "", kind.name);
    std::vector<std::string> plans;
    for (const uint64_t bytes : options_.sizes)
      for (const std::string& plan : candidates(kind, bytes))
        if (std::find(plans.begin(), plans.end(), plan) == plans.end()) plans.push_back(plan);
    for (const std::string& plan : plans) forced_.emplace_back(session_, plan, kind.name);
  }

  static std::string rule_plan(const Json& candidate) {
    const uint64_t chunk = candidate["chunk"].get<uint64_t>();
    std::string plan = candidate["plan"].get<std::string>();
    if (chunk) plan += fmt::format("/{}", chunk);
    return plan;
  }
  std::vector<std::string> candidates(const CollectiveKind& kind, uint64_t bytes) const {
    std::vector<std::string> plans;
    const Json answer = explain(forced_.front().comm(), kind.name, bytes);
    for (const Json& candidate : answer["candidates"])
      if (candidate["plan"].get<std::string>().find("_inline") == std::string::npos)
        plans.push_back(rule_plan(candidate));
    return plans;
  }
  std::string chosen(const CollectiveKind& kind, Memory memory, uint64_t bytes) const {
    std::string plan;
    const Json answer = explain(forced_.front().comm(), kind.name, bytes);
    for (const Json& candidate : answer["candidates"]) {
      const bool pool = candidate["memory"] == "pool";
      if (candidate["chosen"].get<bool>() && (plan.empty() || pool == (memory == Memory::kPool)))
        plan = rule_plan(candidate);
    }
    return plan;
  }

  // Measures a point. A plan that looks better than the choice is measured once more beside it, and
  // the second measurement counts: the least of many medians is partly chance.
  std::optional<Point> measure(const CollectiveKind& kind, Memory memory, uint64_t bytes) {
    const uint64_t parts = kind.sized_by_all() ? static_cast<uint64_t>(session_.ranks()) : 1;
    const Blocks blocks = even_blocks(session_.ranks(), bytes / sizeof(float) / parts);
    const Position place{blocks, session_.rank(), session_.ranks(), 0};
    if (blocks.counts.front() == 0) return std::nullopt;
    std::vector<const Forced*> tried{&forced_.front()};
    const std::vector<std::string> plans = candidates(kind, bytes);
    for (const Forced& forced : forced_)
      if (std::find(plans.begin(), plans.end(), forced.plan()) != plans.end())
        tried.push_back(&forced);
    const uint64_t room =
        std::max(extent_elements(kind.input, place), extent_elements(kind.output, place)) *
        sizeof(float);
    Buffer input(session_, memory, room), output(session_, memory, room);
    std::fill_n(input.at(0), room, '\0');

    const auto call = [&](const Forced& forced) {
      must(kind.call({place, input.at(0), output.at(0), FSCCL_FLOAT32, FSCCL_SUM, forced.comm()}),
           kind.name);
    };
    const auto sample = [&](const Forced& forced, int calls) {
      // This call is not counted, because the caches are as the plan before has left them.
      call(forced);
      session_.barrier();
      const double begin = now_us();
      for (int i = 0; i < calls; i++) call(forced);
      return (now_us() - begin) / calls;
    };
    std::vector<int> calls;
    for (const Forced* forced : tried) {
      for (int i = 0; i < 3; i++) sample(*forced, 2);
      const double us = session_.max_over_ranks({sample(*forced, 2)})[0];
      calls.push_back(static_cast<int>(
          std::clamp(std::ceil(kTuneSampleUs / std::max(us, 0.1)), 1.0, kMostTuneCalls)));
    }
    const auto sample_of = [&](size_t i) { return sample(*tried[i], calls[i]); };
    std::vector<size_t> which(tried.size());
    std::iota(which.begin(), which.end(), size_t{0});
    Point point{&kind,
                memory,
                bytes,
                chosen(kind, memory, bytes),
                {},
                {},
                time_in_turn(session_, options_.repeats, tried, which, sample_of)};
    std::erase_if(which,
                  [&](size_t i) { return i && !better(point.timings[i], point.timings.front()); });
    if (which.size() > 1) {
      std::vector<Timing> again = time_in_turn(session_, options_.repeats, tried, which, sample_of);
      for (size_t i = 0; i < which.size(); i++) point.timings[which[i]] = std::move(again[i]);
    }
    point.choice = point.timings.front();
    point.best = *std::min_element(point.timings.begin(), point.timings.end(),
                                   [](const Timing& a, const Timing& b) { return a.us < b.us; });
    return point;
  }

  void print(const Point& point) {
    points_++;
    if (!printing_) return;
    const std::string& best = point.best.plan.empty() ? point.chosen : point.best.plan;
    if (options_.json) {
      Json json{{"operation", point.kind->name}, {"memory", memory_name(point.memory)},
                {"bytes", point.bytes},          {"chosen", point.chosen},
                {"chosen_us", point.choice.us},  {"best", best},
                {"best_us", point.best.us},      {"spread_us", point.spread()},
                {"behind", point.behind()}};
      for (const Timing& timing : point.timings)
        if (!timing.plan.empty()) json["forced_us"][timing.plan] = timing.us;
      fmt::print("{}\n", json.dump());
    } else {
      fmt::print("{:<15} {:<7} {:>10}  {:<26} {:>10.2f}  {:<26} {:>10.2f} {:>9.2f}{}\n",
                 point.kind->name, memory_name(point.memory), point.bytes, point.chosen,
                 point.choice.us, best, point.best.us, point.spread(),
                 point.behind() ? "  behind" : "");
    }
    flush_output();
  }

  // Adds a rule for the plan with the largest gain, if there is one that is better than the choice
  // by more than the spread in one kind of memory, and worse by more than the spread in none.
  void decide(const CollectiveKind& kind, uint64_t bytes, const std::vector<Point>& points) {
    double most = 0;
    std::string plan;
    for (size_t i = 1; !points.empty() && i < points.front().timings.size(); i++) {
      double gain = 0;
      bool worse_somewhere = false, better_somewhere = false;
      for (const Point& point : points) {
        const Timing& timing = point.timings[i];
        worse_somewhere |= better(point.choice, timing);
        better_somewhere |= better(timing, point.choice);
        gain += (point.choice.us - timing.us) / point.choice.us;
      }
      if (better_somewhere && !worse_somewhere && gain > most) {
        most = gain;
        plan = points.front().timings[i].plan;
      }
    }
    if (plan.empty()) return;
    const auto size = std::find(options_.sizes.begin(), options_.sizes.end(), bytes);
    const uint64_t to = size + 1 == options_.sizes.end() ? bytes : *(size + 1) - 1;
    rules_.push_back(fmt::format("{}@{}x{}:{}-{}={}", kind.name, session_.hosts(),
                                 session_.ranks() / session_.hosts(), bytes, to, plan));
  }

  // Adds the costs that the start of a communicator measured; nothing if nothing was measured.
  void add_costs(Json* file, fsccl_comm_t comm) const {
    const Json found = explain(comm, "barrier", 0);
    if (found["costs_from"] != "calibration") return;
    Json entry;
    for (const char* key : {"machine", "transport", "link", "measured"}) entry[key] = found[key];
    for (Json& known : (*file)["costs"])
      if (known["transport"] == entry["transport"] && known["link"] == entry["link"] &&
          known["machine"] == entry["machine"]) {
        known = entry;
        return;
      }
    (*file)["costs"].push_back(entry);
  }

  // Adds the measured prices. Each takes the place of an older one of the same operation, ranks and
  // algorithm.
  void add_prices(Json* file) const {
    for (const std::string& text : prices_) {
      const Json price = Json::parse(text);
      Json kept = Json::array({price});
      for (const Json& known : (*file)["native"]) {
        bool same = true;
        for (const char* key : {"operation", "hosts", "ranks_per_host", "algorithm"})
          same = same && known.value(key, Json()) == price[key];
        if (!same) kept.push_back(known);
      }
      (*file)["native"] = kept;
    }
    if ((*file)["native"].empty()) file->erase("native");
  }

  // Writes the tuning file; collective. New rules go before those of the file in force. Returns
  // false, after a message on stderr, if the file could not be written.
  bool write() {
    Json file = {{"fsccl_tuning", 1},
                 {"costs", Json::array()},
                 {"rules", Json::array()},
                 {"native", Json::array()}};
    if (const std::string before = setting("FSCCL_TUNING_FILE"); !before.empty()) {
      std::ifstream text(before);
      const Json known = Json::parse(text, nullptr, false);
      for (const char* key : {"costs", "rules", "native"})
        if (known.contains(key)) file[key] = known[key];
    }
    Json rules = Json(rules_);
    for (const Json& known : file["rules"]) rules.push_back(known);
    file["rules"] = rules;
    add_prices(&file);
    add_costs(&file, session_.comm());
    if (session_.hosts() > 1) {
      int local_rank = 0, local_size = 1;
      must(fsccl_comm_local_rank(session_.comm(), &local_rank, &local_size),
           "fsccl_comm_local_rank");
      const std::vector<double> places = session_.all_ranks({static_cast<double>(local_rank)});
      const auto host = std::count(places.begin(), places.begin() + session_.rank() + 1, 0.0);
      fsccl_comm_t host_comm = nullptr;
      const fsccl_comm_config_t config = FSCCL_COMM_CONFIG_INIT;
      must(fsccl_comm_split(session_.comm(), static_cast<int>(host), session_.rank(), &config,
                            &host_comm),
           "fsccl_comm_split");
      add_costs(&file, host_comm);
      must(fsccl_comm_destroy(host_comm), "fsccl_comm_destroy");
    }
    if (!printing_) return true;
    if (!is_well(output_.write(file.dump(1) + "\n"))) return false;
    if (!options_.json)
      fmt::print("# {} rules and {} costs: FSCCL_TUNING_FILE={}\n", file["rules"].size(),
                 file["costs"].size(), options_.output);
    return true;
  }

  const Session& session_;
  const TuneOptions& options_;
  const bool printing_;
  OutputFile output_;
  uint64_t points_ = 0;
  std::vector<Forced> forced_;
  std::vector<std::string> rules_;   // the rules that were found
  std::vector<std::string> prices_;  // the measured prices of algorithms on GPUs
};

}  // namespace

void run_tune(Session& session, const TuneOptions& options) {
  session.open_pool();
  Tuner(session, options).run();
}

}  // namespace fsccl::perf
