// The rules of heartbeats, which decide which ranks a rank considers silent. There is no input,
// output or clock here. TreeJob (tree_beats.cpp) applies the rules over sockets and shared memory,
// and a test applies them without either.
//
// Watchers. Each rank watches its neighbours in the tree, and behind a silent neighbour every rank
// that it can see, because those ranks have no other way to report. A rank reports along the tree,
// to each link, everything that it has seen itself or heard over other links. The path between any
// two ranks begins and ends with a neighbour of each, which sees that rank directly. While a tree
// is mended it may have cycles, so each report counts the links that it has passed, and ends after
// kMostHops. Otherwise two ranks could go on telling each other of a silence that is over.
//
// Silence. A rank shows a mark that changes with every beat. Its silence is counted in the
// watcher's waking time, of which a pause between two looks counts as one beat at most: a watcher
// that was stopped itself, or got no processor, blames no rank for what it missed. A rank that
// runs, or would run if it got a processor, is not silent, as far as the watcher's system can tell.
// A rank that sleeps and is not stopped gets twice the time, because a lock or a page takes long on
// an overloaded machine.
#pragma once
#include <cstdint>
#include <map>
#include <vector>

#include "base/config.h"
#include "bootstrap/job.h"
#include "wire/messages.h"

namespace fsccl {

// The times from the settings. 0 means never.
struct HeartbeatTimes {
  int64_t beat_ns = 0, suspect_ns = 0, dead_ns = 0, host_lost_ns = 0;
};
HeartbeatTimes heartbeat_times(const Config& settings);

// A clock that counts only the time in which its owner runs: a pause between two calls counts as
// one beat at most.
class WakingClock {
 public:
  explicit WakingClock(int64_t beat_ns) : most_ns_(beat_ns) {}
  int64_t advance(int64_t now_ns);

 private:
  int64_t most_ns_, last_ns_ = INT64_MIN, waking_ns_ = 0;
};

// One rank's knowledge of another rank's beats. Times are in the watcher's waking time.
class Pulse {
 public:
  // `mark` is 0 until the first beat. If the mark is new, the beat happened `age_ns` ago, but not
  // before the last look.
  void look(uint64_t mark, int64_t age_ns, int64_t waking_ns);
  bool heard() const { return mark_ != 0; }
  int64_t silent_ns(int64_t waking_ns) const { return mark_ == 0 ? 0 : waking_ns - heard_ns_; }
  // The rank is known to run, so from now on it counts as silent for only `silent_ns`.
  void excuse(int64_t silent_ns, int64_t waking_ns) { heard_ns_ = waking_ns - silent_ns; }

 private:
  uint64_t mark_ = 0;
  int64_t heard_ns_ = 0, looked_ns_ = 0;
};

// The information that a rank itself can get about the others.
class Senses {
 public:
  virtual ~Senses() = default;
  // Returns the neighbours of `rank` in the tree, as far as their beats can be seen from here.
  virtual std::vector<int32_t> next_to(int32_t rank) = 0;
  struct Beat {
    uint64_t mark = 0;
    int64_t age_ns = 0;
    bool left = false;  // the rank has left in order, and no more beats will come
  };
  virtual Beat last_beat(int32_t rank) = 0;
  // Returns the state of the thread that beats, as its system describes it. R: it, or the first
  // thread of its process, runs or could run. T or t: it is stopped. Z: its process has ended. X:
  // it cannot be seen, because it has ended or is not visible from here. 0: unknown. Any other
  // letter: it sleeps.
  virtual char state(int32_t rank) = 0;
  // Returns true if the system of the rank's host has owed an answer for at least `ns`.
  virtual bool host_silent(int32_t rank, int64_t ns) = 0;
};

class Heart {
 public:
  Heart(const HeartbeatTimes& times, int32_t rank)
      : times_(times), rank_(rank), clock_(times.beat_ns) {}

  struct Findings {
    std::vector<int32_t> left;
    std::vector<int32_t> dead;     // silent for too long, or its process is no more
    std::vector<int32_t> cut_off;  // their hosts are lost
    int64_t next_ns = INT64_MAX;   // when the next rank may become overdue
  };
  Findings look(int64_t now_ns, Senses& senses);
  // Records a neighbour's report, which replaces the neighbour's report before.
  void told(int32_t neighbour, const std::vector<Silent>& silent, int64_t now_ns);
  // Records that `rank` is lost, and keeps the knowledge of its silence.
  void lost(int32_t rank, bool with_host, int64_t now_ns);

  // Returns the silences that this rank reports to that neighbour.
  std::vector<Silent> news_for(int32_t neighbour, int64_t now_ns) const;
  PeerLife life(int32_t rank, int64_t now_ns) const;
  // A rank that became a suspect, or is alive again, since the last call of changes().
  struct Change {
    int32_t rank = -1;
    PeerLife life;
  };
  std::vector<Change> changes(int64_t now_ns);

 private:
  struct Silence {
    int64_t since_ns = 0;
    bool stopped = false;
    uint8_t hops = 0;  // the number of links to the rank that sees it directly
  };
  using Silences = std::map<int32_t, Silence>;
  struct Watched {
    Pulse pulse;
    bool seen = false;  // its process was visible before, so it has ended if it is not visible now
  };
  bool watch(int32_t rank, int64_t now_ns, int64_t waking_ns, Senses& senses, Findings& findings);
  Silences known(int32_t but_from) const;

  const HeartbeatTimes times_;
  const int32_t rank_;
  WakingClock clock_;
  std::map<int32_t, Watched> watched_;
  Silences seen_;                     // silences of the watched ranks
  std::map<int32_t, Silences> told_;  // the reports, by neighbour
  Silences reported_;                 // the silences that changes() has reported
  std::map<int32_t, PeerLife> lost_;
};

}  // namespace fsccl
