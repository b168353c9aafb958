// A simulated world: one clock, one source of chance, one list of what is to happen. All ranks live
// in one thread and act one after the other; time passes between what they do, never during it.
// Whatever depends on the seed alone happens again with the same seed.
//
// now_ns() of base/clock.h is this clock in a program that links this library: world.cpp stands in
// for base/clock.cpp.
#pragma once
#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <queue>
#include <string>
#include <vector>

#include "base/hash.h"

namespace fsccl::sim {

inline constexpr int64_t kMicrosecond = 1'000, kMillisecond = 1'000'000, kSecond = 1'000'000'000;

// The times of a world in which nothing is left to chance: processes that nobody disturbs, whose
// calls of the system take processor time.
struct CalmCosts {
  int64_t wake_ns = 0;  // from a wake-up to the processor
  int64_t call_ns = 0;  // processor time of a call
  double byte_ns = 0;   // and of each byte that it moves
};

class World {
 public:
  // `traced`: keeps what is noted as text, too.
  explicit World(uint64_t seed, bool traced = false);
  ~World();
  World(const World&) = delete;
  static World& current();  // the one that lives: one at a time

  int64_t now() const;
  void at(int64_t ns, std::function<void()> happens);
  void after(int64_t ns, std::function<void()> happens) { at(now() + ns, std::move(happens)); }
  // Moves the clock to what is next and lets it happen. False: nothing is.
  bool step();

  uint64_t random();
  uint64_t below(uint64_t limit) { return random() % limit; }
  int64_t between(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(below(static_cast<uint64_t>(most - least + 1)));
  }
  bool chance(double probability) {
    return static_cast<double>(random() >> 11) < probability * 0x1p53;
  }

  // From now on processes run at once and as these say, instead of by chance and in no time.
  void calm(const CalmCosts& costs) { costs_ = costs, calm_ = true; }
  bool is_calm() const { return calm_; }
  const CalmCosts& costs() const { return costs_; }

  // For whoever is wound up outside of time: from now on now_ns() is an hour later at each look,
  // until the end of that.
  static void leave_time(bool out);

  // The history: equal for equal seeds, which its hash shows.
  template <class... Values>
  void note(fmt::format_string<Values...> format, Values&&... values) {
    text_.clear();
    fmt::format_to(std::back_inserter(text_), format, std::forward<Values>(values)...);
    take_note();
  }
  uint64_t history() const { return history_; }
  const std::vector<std::string>& trace() const { return trace_; }

 private:
  struct Event {
    int64_t at;
    uint64_t number;  // orders events of the same time by when they were planned
    std::function<void()> happens;
    bool operator<(const Event& other) const {
      return at != other.at ? at > other.at : number > other.number;
    }
  };
  void take_note();

  std::vector<Event> events_;  // a heap
  uint64_t planned_ = 0, random_, history_;
  bool traced_;
  bool calm_ = false;
  CalmCosts costs_;
  std::string text_;
  std::vector<std::string> trace_;
};

}  // namespace fsccl::sim
