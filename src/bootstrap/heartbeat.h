// Whom a rank holds for silent: the rules of heartbeats. No input or output and no clock of its
// own: TreeJob (tree_beats.cpp) follows them over sockets and shared memory, a test by hand.
//
// Who watches. Each rank watches those next to it in the tree, and behind one that is silent all
// that it can see: who lives there has no way to tell it. What it sees it tells along the tree,
// each link all that comes from elsewhere. Between any two ranks lies a neighbour of each that sees
// it with its own eyes. While a tree is mended it may have cycles: a rumour is told on so often at
// most, so that it does not outlive what it was about for long.
//
// What counts. A rank shows a mark that changes with every beat. Its silence is counted in the
// watcher's waking time, of which a pause between two looks is one beat at most: who was stopped
// itself, or got no processor, blames nobody for what it missed. And who runs, or would if it got a
// processor, is not silent, as far as the watcher's system can tell; who sleeps, and is not
// stopped, gets twice the time: a lock or a page takes long on an overloaded machine.
#pragma once
#include <cstdint>
#include <map>
#include <vector>

#include "base/config.h"
#include "bootstrap/job.h"
#include "wire/messages.h"

namespace fsccl {

// Of what the settings say. 0: never.
struct HeartbeatTimes {
  int64_t beat_ns = 0, suspect_ns = 0, dead_ns = 0, host_lost_ns = 0;
};
HeartbeatTimes heartbeat_times(const Config& settings);

// A clock that stands still while its owner does.
class WakingClock {
 public:
  explicit WakingClock(int64_t beat_ns) : most_ns_(beat_ns) {}
  int64_t advance(int64_t now_ns);

 private:
  int64_t most_ns_, last_ns_ = INT64_MIN, waking_ns_ = 0;
};

// One rank as another sees it. Times are the watcher's waking time.
class Pulse {
 public:
  // `mark`: 0 until the first beat. A new one came `age_ns` ago, if that is since the last look.
  void look(uint64_t mark, int64_t age_ns, int64_t waking_ns);
  bool heard() const { return mark_ != 0; }
  int64_t silent_ns(int64_t waking_ns) const { return mark_ == 0 ? 0 : waking_ns - heard_ns_; }
  // It does run: as if it had been silent for so long only.
  void excuse(int64_t silent_ns, int64_t waking_ns) { heard_ns_ = waking_ns - silent_ns; }

 private:
  uint64_t mark_ = 0;
  int64_t heard_ns_ = 0, looked_ns_ = 0;
};

// What a rank sees of others by itself.
class Senses {
 public:
  virtual ~Senses() = default;
  // Those next to `rank` in the tree, as far as their beats can be seen from here.
  virtual std::vector<int32_t> next_to(int32_t rank) = 0;
  struct Beat {
    uint64_t mark = 0;
    int64_t age_ns = 0;
    bool left = false;  // there will be none any more, as it should be
  };
  virtual Beat last_beat(int32_t rank) = 0;
  // Of the thread that beats, as its system has it: R runs or could, T stopped, Z its process has
  // ended, X that cannot be seen, for it has ended or is out of sight; 0: unknown.
  virtual char state(int32_t rank) = 0;
  // The system of its host owes an answer for so long.
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
    int64_t next_ns = INT64_MAX;   // when somebody may be overdue
  };
  Findings look(int64_t now_ns, Senses& senses);
  // What a neighbour says; it replaces what that said before.
  void told(int32_t neighbour, const std::vector<Silent>& silent, int64_t now_ns);
  // `rank` is lost: what is known of its silence stays.
  void lost(int32_t rank, bool with_host, int64_t now_ns);

  // For that neighbour.
  std::vector<Silent> news_for(int32_t neighbour, int64_t now_ns) const;
  PeerLife life(int32_t rank, int64_t now_ns) const;
  // Those who became suspects, or alive again, since the last call.
  struct Change {
    int32_t rank = -1;
    PeerLife life;
  };
  std::vector<Change> changes(int64_t now_ns);

 private:
  struct Silence {
    int64_t since_ns = 0;
    bool stopped = false;
    uint8_t hops = 0;  // from who sees it
  };
  using Silences = std::map<int32_t, Silence>;
  struct Watched {
    Pulse pulse;
    bool seen = false;  // its process was, so it has ended if it cannot be seen any more
  };
  bool watch(int32_t rank, int64_t now_ns, int64_t waking_ns, Senses& senses, Findings& findings);
  Silences known(int32_t but_from) const;

  const HeartbeatTimes times_;
  const int32_t rank_;
  WakingClock clock_;
  std::map<int32_t, Watched> watched_;
  Silences seen_;                     // of those who are watched
  std::map<int32_t, Silences> told_;  // by neighbour
  Silences reported_;                 // by changes()
  std::map<int32_t, PeerLife> gone_;
};

}  // namespace fsccl
