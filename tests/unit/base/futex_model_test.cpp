// Tests a model of the futex protocol (base/futex.h) in every interleaving. The signaller has a
// store buffer: its store of the word may become visible later than its load of `sleepers` is done.
// The sleeper counts itself with a full barrier, looks at the word, sleeps briefly, looks again,
// and sleeps long, as often as the caller asks. The kernel lets nobody sleep while the word
// differs.
//
// The protocol rests on one assumption: a store leaves its processor in less time than the brief
// sleep takes. The model shows that no wake-up is lost if this holds. It also shows that a wake-up
// can be lost if it does not hold, if there is no brief sleep, or if the sleeper does not stay
// counted throughout.
#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace {

struct Rules {
  bool stores_leave_in_time = true;
  bool sleeps_briefly_first = true;
  bool stays_counted = true;
};

enum class Signaller : uint8_t { stores, looks, wakes, done };
enum class Sleeper : uint8_t { counts, looks, brief, recounts, looks_again, sleeps_long, done };

struct State {
  Signaller signaller = Signaller::stores;
  Sleeper sleeper = Sleeper::counts;
  bool buffered = false;          // the store is in the signaller's buffer
  bool visible = false;           // the word has its new value in memory
  bool saw_sleeper = false;       // the signaller loaded a count that is not zero
  bool counted = false;           // `sleepers` in memory counts the sleeper
  bool older_than_sleep = false;  // the store was buffered when the brief sleep began
  auto operator<=>(const State&) const = default;
};

// Returns true if the sleeper sleeps although the signal is there, and nobody will wake it.
bool lost(const State& s) {
  return s.sleeper == Sleeper::sleeps_long && s.signaller == Signaller::done && s.visible;
}

std::vector<State> signaller_steps(const State& s) {
  std::vector<State> next;
  if (s.buffered) {  // the store may become visible at any moment
    State n = s;
    n.buffered = false;
    n.visible = true;
    n.older_than_sleep = false;
    next.push_back(n);
  }
  State n = s;
  switch (s.signaller) {
    case Signaller::stores:
      n.buffered = true;
      n.signaller = Signaller::looks;
      break;
    case Signaller::looks:
      n.saw_sleeper = s.counted;
      n.signaller = n.saw_sleeper ? Signaller::wakes : Signaller::done;
      break;
    case Signaller::wakes:
      // A system call is a full barrier. A sleeper that is woken looks at the word again.
      n.buffered = false;
      n.visible = true;
      n.older_than_sleep = false;
      if (s.sleeper == Sleeper::brief || s.sleeper == Sleeper::sleeps_long)
        n.sleeper = Sleeper::done;
      n.signaller = Signaller::done;
      break;
    case Signaller::done:
      return next;
  }
  next.push_back(n);
  return next;
}

std::vector<State> sleeper_steps(const State& s, const Rules& rules) {
  State n = s;
  switch (s.sleeper) {
    case Sleeper::counts:
      n.counted = true;
      n.sleeper = rules.sleeps_briefly_first ? Sleeper::looks : Sleeper::looks_again;
      break;
    case Sleeper::looks:
      n.sleeper = s.visible ? Sleeper::done : Sleeper::brief;
      n.older_than_sleep = s.buffered;
      if (!rules.stays_counted) n.counted = false;
      break;
    case Sleeper::brief:  // ends by its timeout
      if (rules.stores_leave_in_time && s.older_than_sleep) return {};
      n.sleeper = rules.stays_counted ? Sleeper::looks_again : Sleeper::recounts;
      break;
    case Sleeper::recounts:
      n.counted = true;
      n.sleeper = Sleeper::looks_again;
      break;
    case Sleeper::looks_again:
      n.sleeper = s.visible ? Sleeper::done : Sleeper::sleeps_long;
      break;
    case Sleeper::sleeps_long:  // ends by its timeout; the sleeper stays counted, and sleeps again
      n.sleeper = Sleeper::looks_again;
      break;
    case Sleeper::done:
      return {};
  }
  return {n};
}

// Walks through all states; returns how many there are, and whether a wake-up is lost in one.
struct Walk {
  size_t states = 0;
  bool loses = false;
};
Walk walk(const Rules& rules) {
  std::set<State> seen{State{}};
  std::vector<State> open{State{}};
  Walk result;
  while (!open.empty()) {
    const State state = open.back();
    open.pop_back();
    result.loses |= lost(state);
    std::vector<State> next = signaller_steps(state);
    for (const State& other : sleeper_steps(state, rules)) next.push_back(other);
    for (const State& other : next)
      if (seen.insert(other).second) open.push_back(other);
  }
  result.states = seen.size();
  return result;
}

TEST(FutexModel, NoWakeUpIsLost) {
  const Walk all = walk({});
  EXPECT_FALSE(all.loses);
  EXPECT_GT(all.states, 20u) << "it walks through hardly anything";
}

TEST(FutexModel, RestsOnStoresThatLeaveInTime) {
  EXPECT_TRUE(walk({.stores_leave_in_time = false}).loses);
}

TEST(FutexModel, RestsOnTheBriefSleep) { EXPECT_TRUE(walk({.sleeps_briefly_first = false}).loses); }

TEST(FutexModel, RestsOnASleeperThatStaysCounted) {
  EXPECT_TRUE(walk({.stays_counted = false}).loses);
}

}  // namespace
