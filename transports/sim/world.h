// A simulated world: one clock, one source of chance, and one list of coming events. All ranks live
// in one thread and act one after the other. Time passes between their actions and never during
// them. A world with the same seed has the same history.
//
// In a program that links the world, now_ns() of the library is its clock.
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

// The times of a calm world, in which nothing is left to chance: nothing disturbs its processes,
// and their system calls take processor time.
struct CalmCosts {
  int64_t wake_ns = 0;  // from a wake-up until the thread runs
  int64_t call_ns = 0;  // processor time of a call
  double byte_ns = 0;   // processor time of each byte that a call moves
};

class World {
 public:
  // With `traced`, notes are also kept as text.
  explicit World(uint64_t seed, bool traced = false);
  ~World();
  World(const World&) = delete;
  static World& current();  // the only world that exists at a time

  int64_t now() const;
  void at(int64_t ns, std::function<void()> happens);
  void after(int64_t ns, std::function<void()> happens) { at(now() + ns, std::move(happens)); }
  // Moves the clock to the next event and runs it. Returns false if there is none.
  bool step();

  uint64_t random();
  uint64_t below(uint64_t limit) { return random() % limit; }
  int64_t between(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(below(static_cast<uint64_t>(most - least + 1)));
  }
  bool chance(double probability) {
    return static_cast<double>(random() >> 11) < probability * 0x1p53;
  }

  // Makes the world calm: from now on the times of processes are these, and not left to chance.
  void calm(const CalmCosts& costs) { costs_ = costs, calm_ = true; }
  bool is_calm() const { return calm_; }
  const CalmCosts& costs() const { return costs_; }

  // leave_time(true) puts the running code outside of time: each call of now_ns() returns an hour
  // more, so that every wait ends. leave_time(false) ends that.
  static void leave_time(bool out);

  // Adds a note to the history. Equal seeds have equal histories, and so equal hashes (history()).
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
    uint64_t number;  // events of the same time are in the order of this
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
