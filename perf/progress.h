// Says on stderr how far a long work is. On a terminal this is one line, which is written over
// itself; elsewhere a line is added every few seconds.
#pragma once
#include <functional>
#include <string>

namespace fsccl::perf {

class Progress {
 public:
  explicit Progress(bool active);  // only one rank speaks
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void say(const std::function<std::string()>& text);  // `text` is called only when it is time
  void clear();                                        // is called before anything else is printed

 private:
  bool active_, terminal_, shown_ = false;
  double next_us_ = 0;
};

}  // namespace fsccl::perf
